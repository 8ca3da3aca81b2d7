//! JSON that clients send as a text: read once, with bounds, and with every key given once.

use std::collections::HashSet;
use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::clip::clip;
use crate::limits::MAX_CONSTRAINT_DEPTH;

/// Reads a document; fails with what follows the name of the field that it came in.
pub(crate) fn parse(text: &str) -> Result<Value, String> {
    let levels = depth(text);
    if levels > MAX_CONSTRAINT_DEPTH {
        return Err(too_deep(levels));
    }
    match serde_json::from_str::<Unique>(text) {
        Ok(document) => Ok(document.0),
        Err(error) if error.is_data() => Err(without_position(&error)),
        Err(error) => Err(format!(
            "is not valid JSON: {} (line {}, column {})",
            without_position(&error),
            error.line(),
            error.column()
        )),
    }
}

fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

pub(crate) fn too_deep(levels: usize) -> String {
    format!("is nested {levels} levels deep, allowed are {MAX_CONSTRAINT_DEPTH}; nest it less")
}

/// Objects and lists inside each other, at the deepest place.
fn depth(text: &str) -> usize {
    let (mut levels, mut deepest) = (0usize, 0);
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => skip_string(&mut bytes),
            b'{' | b'[' => {
                levels += 1;
                deepest = deepest.max(levels);
            }
            b'}' | b']' => levels = levels.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

fn skip_string(bytes: &mut impl Iterator<Item = u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => return,
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
}

/// A value none of whose objects gives a key twice: readers differ in which of the two they take.
struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(UniqueVisitor).map(Self)
    }
}

struct UniqueVisitor;

impl<'de> Visitor<'de> for UniqueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element::<Unique>()? {
            items.push(item.0);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        let mut seen = HashSet::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = access.next_value::<Unique>()?;
            if !seen.insert(key.clone()) {
                let message = format!("gives `{}` more than once in one object", clip(&key));
                return Err(de::Error::custom(message));
            }
            map.insert(key, value.0);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_what_stands_there() {
        for text in [
            r#"{"b":1,"a":[null,true,-3,18446744073709551615,0.5,"x\"é{["]}"#,
            "{}",
            "true",
        ] {
            assert_eq!(parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn brackets_in_strings_are_no_levels() {
        assert_eq!(depth(r#"{"a\"[[[":["\\"],"b":"]]]{"}"#), 2);
        assert_eq!(depth("]]]["), 1);
        assert_eq!(depth("\"[[[["), 0);
        assert_eq!(depth("\"\\"), 0);
    }

    #[test]
    fn bounds_and_keys_are_kept() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&nested(MAX_CONSTRAINT_DEPTH)).is_ok());
        for (text, words) in [
            (nested(MAX_CONSTRAINT_DEPTH + 1), "levels deep"),
            ("[".repeat(1_000_000), "nested 1000000 levels deep"),
            (
                r#"[{"a":{"b":1,"b":1}}]"#.to_owned(),
                "gives `b` more than once in one object",
            ),
            ("{".to_owned(), "is not valid JSON: EOF"),
            ("1e999".to_owned(), "is not valid JSON: number out of range"),
            ("{} {}".to_owned(), "is not valid JSON: trailing characters"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(words) && error.len() < 200, "{error}");
        }
    }
}
