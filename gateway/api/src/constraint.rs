//! What an answer must match: `response_format`, or one of `json_schema`, `regex`, `ebnf`, `structural_tag`.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};
use serde_json::value::RawValue;

use crate::body::Body;
use crate::error::ApiError;

/// Any JSON object.
const JSON_OBJECT: &str = r#"{"type":"object"}"#;

/// A constraint as its text; whether it can be honoured is for the worker's grammar backend to say.
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

#[derive(Deserialize)]
struct Texts {
    json_schema: Option<String>,
    regex: Option<String>,
    ebnf: Option<String>,
    structural_tag: Option<String>,
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
    json_schema: Option<NamedSchema<'a>>,
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

#[derive(Deserialize)]
struct NamedSchema<'a> {
    #[serde(borrow)]
    schema: Option<&'a RawValue>,
}

/// Reads the four fields; an empty text asks for nothing. At most one may be given.
pub(crate) fn from_texts(body: &Body) -> Result<Option<Constraint>, ApiError> {
    let raw: Texts = body.read()?;
    let given = [
        ("json_schema", raw.json_schema.map(Constraint::JsonSchema)),
        ("regex", raw.regex.map(Constraint::Regex)),
        ("ebnf", raw.ebnf.map(Constraint::Ebnf)),
        (
            "structural_tag",
            raw.structural_tag.map(Constraint::StructuralTag),
        ),
    ];
    only_one(
        body,
        given
            .into_iter()
            .filter_map(|(field, constraint)| Some((field, constraint.filter(|c| !c.text().is_empty())?))),
    )
}

/// The same with `response_format` beside them.
pub(crate) fn from_openai(body: &Body) -> Result<Option<Constraint>, ApiError> {
    let text = from_texts(body)?;
    let format = match body.read::<Formats>()?.response_format {
        Some(raw) => response_format(body, raw)?,
        None => None,
    };
    if let (Some(_), Some(other)) = (&format, &text) {
        return Err(both(body, "response_format", other.field()));
    }
    Ok(format.or(text))
}

fn response_format(body: &Body, raw: &RawValue) -> Result<Option<Constraint>, ApiError> {
    if raw.get() == "null" {
        return Ok(None);
    }
    let path = body.path_of("response_format");
    let format = Body::parse_at(path, raw.get())?;
    let fields: Format = format.read()?;
    Ok(match fields.r#type {
        FormatType::Text => None,
        FormatType::JsonObject => Some(Constraint::JsonSchema(JSON_OBJECT.to_owned())),
        FormatType::StructuralTag => Some(Constraint::StructuralTag(raw.get().to_owned())),
        FormatType::JsonSchema => {
            let param = format.path_of("json_schema.schema");
            let schema = fields.json_schema.and_then(|named| named.schema);
            let schema = schema.filter(|schema| schema.get() != "null").ok_or_else(|| {
                ApiError::missing(
                    param.clone(),
                    format!("{param} is required with type json_schema"),
                )
            })?;
            Some(Constraint::JsonSchema(schema.get().to_owned()))
        }
    })
}

fn only_one(
    body: &Body,
    given: impl Iterator<Item = (&'static str, Constraint)>,
) -> Result<Option<Constraint>, ApiError> {
    let mut found: Option<(&'static str, Constraint)> = None;
    for (field, constraint) in given {
        if let Some((first, _)) = &found {
            return Err(both(body, first, field));
        }
        found = Some((field, constraint));
    }
    Ok(found.map(|(_, constraint)| constraint))
}

fn both(body: &Body, first: &str, second: &str) -> ApiError {
    let message = format!("{first} and {second} exclude each other: an answer has at most one constraint");
    ApiError::bad_request(body.path_of(second), message)
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
