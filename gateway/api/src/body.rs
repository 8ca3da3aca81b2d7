//! From the bytes of a body to typed fields; every failure names the field, what was given and what is allowed.

use std::fmt;

use serde::de::{
    self, Deserialize, Deserializer, IntoDeserializer, MapAccess, Visitor, value::MapDeserializer,
};
use serde::forward_to_deserialize_any;
use serde_json::value::RawValue;

use crate::clip::clip;
use crate::error::ApiError;

/// A JSON object cut into its top-level fields, whose values are not parsed yet.
///
/// One body is read by several types (sampling, messages …); each parses its own fields only.
#[derive(Debug)]
pub(crate) struct Body<'a> {
    /// Path of this object inside the request, `""` at the top.
    path: String,
    fields: Vec<(String, &'a RawValue)>,
}

impl<'a> Body<'a> {
    /// Checks that `bytes` is one UTF-8 JSON object whose keys are given once.
    pub(crate) fn parse(bytes: &'a [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(bytes).map_err(|e| {
            ApiError::invalid_body(format!(
                "The request body is not valid UTF-8: broken at byte {}",
                e.valid_up_to()
            ))
        })?;
        Self::parse_at(String::new(), text)
    }

    /// The same for an object that stands at `path` inside a request.
    pub(crate) fn parse_at(path: String, text: &'a str) -> Result<Self, ApiError> {
        let mut json = serde_json::Deserializer::from_str(text);
        let parsed = serde_path_to_error::deserialize::<_, Fields<'a>>(&mut json);
        let fields = parsed.map_err(|e| malformed(&path, &e.path().to_string(), e.inner()))?;
        json.end().map_err(|e| malformed(&path, ".", &e))?;
        Ok(Self {
            path,
            fields: fields.0,
        })
    }

    /// Reads a struct from the fields it knows, and leaves the others alone.
    pub(crate) fn read<T: Deserialize<'a>>(&self) -> Result<T, ApiError> {
        let fields = self.fields.iter().map(|(key, raw)| (key.as_str(), Field(raw)));
        let map = MapDeserializer::<_, serde_json::Error>::new(fields);
        serde_path_to_error::deserialize(map)
            .map_err(|e| wrong_field(&self.path, &e.path().to_string(), e.inner()))
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = (&str, &'a RawValue)> {
        self.fields.iter().map(|(key, raw)| (key.as_str(), *raw))
    }

    /// The path of a field of this object inside the request.
    pub(crate) fn path_of(&self, field: &str) -> String {
        join(&self.path, field)
    }
}

fn join(path: &str, field: &str) -> String {
    match (path, field) {
        ("", field) => field.to_owned(),
        (path, "." | "") => path.to_owned(),
        (path, field) if field.starts_with('[') => format!("{path}{field}"),
        (path, field) => format!("{path}.{field}"),
    }
}

// ------------------------------------------------------------------ errors

/// Text that is no JSON, or no JSON object.
fn malformed(path: &str, field: &str, error: &serde_json::Error) -> ApiError {
    if error.is_data() {
        let predicate = predicate(&plain(error));
        return match path {
            "" => ApiError::invalid_body(format!("The request body {predicate}")),
            path => ApiError::invalid_body(format!("{path} {predicate}")).with_param(path),
        };
    }
    let full = join(path, field);
    let invalid = ApiError::invalid_body(format!("The request body is not valid JSON: {error}"));
    if full.is_empty() || full == "." || full == "?" {
        invalid
    } else {
        invalid.with_param(full)
    }
}

/// A field whose value has the wrong type, or that is missing.
fn wrong_field(path: &str, field: &str, error: &serde_json::Error) -> ApiError {
    let text = plain(error);
    if let Some(name) = text
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'))
    {
        let parent = if field == "." {
            String::new()
        } else {
            field.to_owned()
        };
        let param = join(&join(path, &parent), name);
        let message = format!("{} is required", clip(&param));
        return ApiError::missing(param, message);
    }
    let too_deep = text.starts_with("recursion limit");
    let field = if too_deep {
        field.trim_end_matches("[0]")
    } else {
        field
    };
    let param = join(path, field);
    let message = format!("{} {}", clip(&param), predicate(&text));
    ApiError::bad_request(param, message)
}

/// serde's sentence without the position, which is relative to a part of the body.
fn plain(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// Turns serde's sentence into what follows the name of a field.
fn predicate(text: &str) -> String {
    let mismatch = ["invalid type: ", "invalid value: ", "invalid length: "]
        .iter()
        .find_map(|prefix| text.strip_prefix(prefix))
        .and_then(|rest| rest.rsplit_once(", expected "));
    if let Some((given, wanted)) = mismatch {
        return format!(
            "must be {}, got {}",
            wanted_in_words(wanted),
            given_in_words(given)
        );
    }
    if let Some((given, wanted)) = text
        .strip_prefix("unknown variant ")
        .and_then(|rest| rest.rsplit_once(", expected "))
    {
        return format!("must be {wanted}, got {}", clip(given));
    }
    if text.starts_with("recursion limit") {
        return "is nested more than 128 levels deep".to_owned();
    }
    if text == "number out of range" {
        return "is a number out of range".to_owned();
    }
    clip(text).into_owned()
}

fn wanted_in_words(wanted: &str) -> String {
    let words = match wanted {
        "u8" | "u16" | "u32" => "a whole number from 0 to 4294967295",
        "u64" | "usize" => "a whole number, 0 or more",
        "i8" | "i16" | "i32" => "a whole number from -2147483648 to 2147483647",
        "i64" => "a whole number of 64 bits",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" => "a list",
        "a map" => "an object",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    words.to_owned()
}

fn given_in_words(given: &str) -> String {
    match given {
        "sequence" => "a list".to_owned(),
        "map" => "an object".to_owned(),
        "unit value" => "null".to_owned(),
        other => match other
            .strip_prefix("string \"")
            .and_then(|rest| rest.strip_suffix('"'))
        {
            Some(text) => format!("string \"{}\"", clip(text)),
            None => clip(&other.replacen("floating point", "the number", 1)).into_owned(),
        },
    }
}

// ------------------------------------------------------------------ serde plumbing

struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Fields<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldsVisitor;
        impl<'de> Visitor<'de> for FieldsVisitor {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields: Vec<(String, &'de RawValue)> = Vec::new();
                let mut seen = std::collections::HashSet::new();
                while let Some(key) = map.next_key::<String>()? {
                    let value = map.next_value()?;
                    if !seen.insert(key.clone()) {
                        return Err(de::Error::custom(format!(
                            "gives `{}` more than once",
                            clip(&key)
                        )));
                    }
                    fields.push((key, value));
                }
                Ok(fields)
            }
        }
        deserializer.deserialize_map(FieldsVisitor).map(Fields)
    }
}

/// A value that is parsed when a type asks for it, and skipped for free when none does.
#[derive(Clone, Copy)]
struct Field<'a>(&'a RawValue);

impl<'de> IntoDeserializer<'de, serde_json::Error> for Field<'de> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Field<'de> {
    type Error = serde_json::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.deserialize_any(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        self.0.deserialize_option(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_newtype_struct(name, visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Self::Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct identifier
    }
}
