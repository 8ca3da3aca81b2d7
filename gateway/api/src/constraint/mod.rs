//! What an answer must match: `response_format`, or one of `json_schema`, `regex`, `ebnf`, `structural_tag`.
//!
//! Checked as far as it can be without a grammar backend: what is no schema, what is too large or nested too deep, and
//! keywords that no backend of ours honours are refused before a worker sees them.

mod honour;
mod json;
mod keywords;
mod references;
mod schema;
mod tag;
mod trail;

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::body::Body;
use crate::clip::clip;
use crate::error::ApiError;
use crate::limits::{MAX_CONSTRAINT_BYTES, MAX_CONSTRAINT_DEPTH};

use schema::Fault;
pub(crate) use schema::change_each as change_each_schema;

/// Any JSON object.
const JSON_OBJECT: &str = r#"{"type":"object"}"#;

/// A constraint as its text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constraint {
    /// A JSON schema.
    JsonSchema(String),
    Regex(String),
    /// A grammar in GBNF notation whose root rule is `root`.
    Ebnf(String),
    /// A structural tag description in JSON.
    StructuralTag(String),
}

/// A constraint that is well-formed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Checked {
    pub(crate) constraint: Constraint,
    /// Why none of our grammar backends honours it; another one may.
    pub(crate) unhonoured: Option<ApiError>,
}

#[derive(Deserialize)]
struct Texts<'a> {
    #[serde(borrow)]
    json_schema: Option<&'a RawValue>,
    regex: Option<String>,
    ebnf: Option<String>,
    structural_tag: Option<String>,
}

#[derive(Deserialize)]
struct SchemaText {
    json_schema: Option<String>,
}

#[derive(Deserialize)]
struct Formats<'a> {
    #[serde(borrow)]
    response_format: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Format<'a> {
    r#type: FormatType,
    #[serde(borrow)]
    json_schema: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct NamedSchema<'a> {
    name: Option<String>,
    #[serde(rename = "description")]
    _description: Option<String>,
    #[serde(rename = "strict")]
    _strict: Option<bool>,
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
}

#[derive(Clone, Copy)]
enum FormatType {
    Text,
    JsonObject,
    JsonSchema,
    StructuralTag,
}

impl<'de> Deserialize<'de> for FormatType {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TypeVisitor;
        impl Visitor<'_> for TypeVisitor {
            type Value = FormatType;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("one of `text`, `json_object`, `json_schema`, `structural_tag`")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<FormatType, E> {
                match text {
                    "text" => Ok(FormatType::Text),
                    "json_object" => Ok(FormatType::JsonObject),
                    "json_schema" => Ok(FormatType::JsonSchema),
                    "structural_tag" => Ok(FormatType::StructuralTag),
                    other => Err(E::invalid_value(de::Unexpected::Str(other), &self)),
                }
            }
        }
        deserializer.deserialize_str(TypeVisitor)
    }
}

// ------------------------------------------------------------------ reading

/// Reads the four fields; an empty text asks for nothing. At most one may be given.
pub(crate) fn from_texts(body: &Body) -> Result<Option<Checked>, ApiError> {
    only_one(body, given_texts(body, false)?)?
        .map(|constraint| checked(&body.path_of(constraint.field()), constraint))
        .transpose()
}

/// The same with `response_format` beside them, and the schema as an object too.
pub(crate) fn from_openai(body: &Body) -> Result<Option<Checked>, ApiError> {
    let text = only_one(body, given_texts(body, true)?)?;
    let format = match body.read::<Formats>()?.response_format {
        Some(raw) => response_format(body, raw)?,
        None => None,
    };
    match (format, text) {
        (Some(_), Some(other)) => Err(both(body, "response_format", other.field())),
        (Some((param, constraint)), None) => checked(&param, constraint).map(Some),
        (None, Some(constraint)) => checked(&body.path_of(constraint.field()), constraint).map(Some),
        (None, None) => Ok(None),
    }
}

fn given_texts(body: &Body, takes_objects: bool) -> Result<Vec<Constraint>, ApiError> {
    let raw: Texts = body.read()?;
    let schema = match raw.json_schema {
        Some(schema) if takes_objects && schema.get().starts_with('{') => Some(schema.get().to_owned()),
        Some(_) => body.read::<SchemaText>()?.json_schema,
        None => None,
    };
    let given = [
        schema.map(Constraint::JsonSchema),
        raw.regex.map(Constraint::Regex),
        raw.ebnf.map(Constraint::Ebnf),
        raw.structural_tag.map(Constraint::StructuralTag),
    ];
    let given = given.into_iter().flatten();
    Ok(given.filter(|constraint| !constraint.text().is_empty()).collect())
}

/// The constraint, and the field that holds its text.
fn response_format(body: &Body, raw: &RawValue) -> Result<Option<(String, Constraint)>, ApiError> {
    if raw.get() == "null" {
        return Ok(None);
    }
    let path = body.path_of("response_format");
    let format = Body::parse_at(path.clone(), raw.get())?;
    let fields: Format = format.read()?;
    Ok(match fields.r#type {
        FormatType::Text => None,
        FormatType::JsonObject => Some((path, Constraint::JsonSchema(JSON_OBJECT.to_owned()))),
        FormatType::StructuralTag => Some((path, Constraint::StructuralTag(raw.get().to_owned()))),
        FormatType::JsonSchema => Some(named_schema(&format, fields.json_schema)?),
    })
}

fn named_schema(format: &Body, raw: Option<&RawValue>) -> Result<(String, Constraint), ApiError> {
    let param = format.path_of("json_schema.schema");
    let missing = || {
        ApiError::missing(
            param.clone(),
            format!("{param} is required with type json_schema"),
        )
    };
    let raw = raw.filter(|raw| raw.get() != "null").ok_or_else(missing)?;
    let named = Body::parse_at(format.path_of("json_schema"), raw.get())?;
    let fields: NamedSchema = named.read()?;
    if fields.name.is_some_and(|name| name.is_empty()) {
        let name = named.path_of("name");
        let message = format!("{name} must not be empty; give the schema a name, or leave it out");
        return Err(ApiError::bad_request(name, message));
    }
    let schema = fields.schema.filter(|schema| schema.get() != "null");
    let text = schema.ok_or_else(missing)?.get().to_owned();
    Ok((param, Constraint::JsonSchema(text)))
}

fn only_one(body: &Body, given: Vec<Constraint>) -> Result<Option<Constraint>, ApiError> {
    let mut given = given.into_iter();
    let first = given.next();
    match (&first, given.next()) {
        (Some(first), Some(second)) => Err(both(body, first.field(), second.field())),
        _ => Ok(first),
    }
}

fn both(body: &Body, first: &str, second: &str) -> ApiError {
    let message = format!("{first} and {second} exclude each other: an answer has at most one constraint");
    ApiError::bad_request(body.path_of(second), message)
}

// ------------------------------------------------------------------ checking

/// Refuses a constraint that no backend can compile. `param` is the field that holds it.
pub(crate) fn checked(param: &str, constraint: Constraint) -> Result<Checked, ApiError> {
    let text = constraint.text();
    if text.len() > MAX_CONSTRAINT_BYTES {
        return Err(ApiError::bad_request(
            param,
            format!("{param} {}", too_long(text.len())),
        ));
    }
    let found = match &constraint {
        Constraint::JsonSchema(text) => checked_json(param, text, schema::check)?,
        Constraint::StructuralTag(text) => checked_json(param, text, tag::check)?,
        Constraint::Regex(text) | Constraint::Ebnf(text) => {
            let levels = group_depth(text, matches!(constraint, Constraint::Ebnf(_)));
            if levels > MAX_CONSTRAINT_DEPTH {
                let predicate = json::too_deep(levels);
                return Err(ApiError::bad_request(param, format!("{param} {predicate}")));
            }
            None
        }
    };
    Ok(Checked {
        constraint,
        unhonoured: found.map(|fault| unhonoured(param, fault)),
    })
}

/// Refuses what is no schema; returns why none of our grammar backends honours it, if that is so.
pub(crate) fn check_schema(param: &str, value: &Value) -> Result<Option<ApiError>, ApiError> {
    let found = schema::check(value).map_err(|fault| wrong(param, fault))?;
    Ok(found.map(|fault| unhonoured(param, fault)))
}

fn too_long(num_bytes: usize) -> String {
    format!("has {num_bytes} bytes, allowed are {MAX_CONSTRAINT_BYTES}; make it smaller")
}

fn checked_json(
    param: &str,
    text: &str,
    check: fn(&Value) -> Result<Option<Fault>, Fault>,
) -> Result<Option<Fault>, ApiError> {
    let document = parse_json(param, text)?;
    check(&document).map_err(|fault| wrong(param, fault))
}

/// Reads JSON within the bounds of constraints.
pub(crate) fn parse_json(param: &str, text: &str) -> Result<Value, ApiError> {
    json::parse(text).map_err(|predicate| ApiError::bad_request(param, format!("{param} {predicate}")))
}

fn wrong(param: &str, fault: Fault) -> ApiError {
    let (place, message) = in_words(param, fault);
    ApiError::bad_request(place, message)
}

fn unhonoured(param: &str, fault: Fault) -> ApiError {
    let (place, message) = in_words(param, fault);
    ApiError::unsupported(place, message)
}

/// The place, and what is to say of it.
fn in_words(param: &str, Fault { pointer, predicate }: Fault) -> (String, String) {
    let message = if pointer.is_empty() {
        format!("{param} {predicate}")
    } else {
        format!("{param}: `{}` {predicate}", clip(&pointer))
    };
    (param.to_owned() + &pointer, message)
}

/// Groups inside each other in a regex or, with quoted texts and comments, a grammar: at the deepest place.
fn group_depth(text: &str, is_grammar: bool) -> usize {
    let (mut levels, mut deepest) = (0usize, 0);
    // What ends the class, text or comment that we are in.
    let mut until: Option<u8> = None;
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match (byte, until) {
            (b'\\', _) => {
                bytes.next();
            }
            (_, Some(end)) if byte == end => until = None,
            (_, Some(_)) => {}
            (b'[', None) => until = Some(b']'),
            (b'"', None) if is_grammar => until = Some(b'"'),
            (b'#', None) if is_grammar => until = Some(b'\n'),
            (b'(', None) => {
                levels += 1;
                deepest = deepest.max(levels);
            }
            (b')', None) => levels = levels.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

// === impl Constraint ===

impl Constraint {
    /// Empty texts ask for nothing.
    fn text(&self) -> &str {
        match self {
            Self::JsonSchema(text) | Self::Regex(text) | Self::Ebnf(text) | Self::StructuralTag(text) => text,
        }
    }

    fn field(&self) -> &'static str {
        match self {
            Self::JsonSchema(_) => "json_schema",
            Self::Regex(_) => "regex",
            Self::Ebnf(_) => "ebnf",
            Self::StructuralTag(_) => "structural_tag",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_counted_where_they_are_some() {
        assert_eq!(group_depth(r"((a)|[(((]\(\[(b))(", false), 2);
        assert_eq!(
            group_depth("root ::= (\"((\\\"(\" [((]) # it's (((\n x ::= (((", true),
            3
        );
        assert_eq!(group_depth("\"((", false), 2);
        assert_eq!(group_depth("\\", false), 0);
    }
}
