//! `google.protobuf.Struct` and JSON.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value as ProtoValue};
use serde_json::{Map, Number, Value};

/// Largest whole number up to which every integer has an exact f64.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// A struct as a JSON object. Struct knows only doubles: whole numbers become integers again, and what JSON
/// lacks (NaN, infinities) becomes null.
pub(crate) fn from_struct(fields: Struct) -> Map<String, Value> {
    fields
        .fields
        .into_iter()
        .map(|(name, value)| (name, from_value(value)))
        .collect()
}

fn from_value(value: ProtoValue) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => Value::Bool(flag),
        Some(Kind::StringValue(text)) => Value::String(text),
        Some(Kind::NumberValue(number)) => from_number(number),
        Some(Kind::ListValue(list)) => Value::Array(list.values.into_iter().map(from_value).collect()),
        Some(Kind::StructValue(fields)) => Value::Object(from_struct(fields)),
    }
}

fn from_number(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER {
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or(Value::Null, Value::Number)
}

/// A JSON object as a struct. Numbers become doubles.
pub fn to_struct(object: &Map<String, Value>) -> Struct {
    Struct {
        fields: object
            .iter()
            .map(|(name, value)| (name.clone(), to_value(value)))
            .collect(),
    }
}

fn to_value(value: &Value) -> ProtoValue {
    let kind = match value {
        Value::Null => Kind::NullValue(0),
        Value::Bool(flag) => Kind::BoolValue(*flag),
        Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Value::String(text) => Kind::StringValue(text.clone()),
        Value::Array(items) => Kind::ListValue(ListValue {
            values: items.iter().map(to_value).collect(),
        }),
        Value::Object(object) => Kind::StructValue(to_struct(object)),
    };
    ProtoValue { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn json_survives_the_struct() {
        let object = json!({"tp_size": 2, "big": 1_099_511_627_776i64, "share": 0.875, "negative": -3,
            "name": "demo", "none": null, "on": true, "list": [1, "two", {"three": 3.5}], "empty": {}});
        let object = object.as_object().unwrap();
        let back = from_struct(to_struct(object));
        assert_eq!(back, *object);
        assert!(back["tp_size"].is_i64() && back["big"].is_i64() && back["share"].is_f64());
    }

    #[test]
    fn numbers_outside_json_become_null() {
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(from_number(number), Value::Null);
        }
        assert!(from_number(1e300).is_f64());
    }
}
