//! The keywords of JSON Schema, and what their values may be.

use serde_json::{Number, Value};

use super::trail::Segment;
use crate::clip::clip;

/// What stands in a keyword's value.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Schema,
    /// A list of schemas that is not empty.
    Schemas,
    SchemaOrSchemas,
    /// Name → schema.
    SchemaMap,
    /// Name → schema, or list of names.
    Dependencies,
    /// Name → list of names.
    NameMap,
    Names,
    Types,
    /// A list of values that is not empty.
    Values,
    /// A whole number, 0 or more.
    Count,
    Number,
    /// A number above 0.
    Step,
    /// A number; in old drafts true or false.
    Bound,
    Text,
    Flag,
    /// Anything: annotations, values, and what JSON Schema does not know.
    Any,
}

pub(super) fn form(keyword: &str) -> Form {
    match keyword {
        "additionalItems"
        | "additionalProperties"
        | "contains"
        | "else"
        | "if"
        | "not"
        | "propertyNames"
        | "then"
        | "unevaluatedItems"
        | "unevaluatedProperties" => Form::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Form::Schemas,
        "items" => Form::SchemaOrSchemas,
        "$defs" | "definitions" | "dependentSchemas" | "patternProperties" | "properties" => Form::SchemaMap,
        "dependencies" => Form::Dependencies,
        "dependentRequired" => Form::NameMap,
        "required" => Form::Names,
        "type" => Form::Types,
        "enum" => Form::Values,
        "maxContains" | "maxItems" | "maxLength" | "maxProperties" | "minContains" | "minItems"
        | "minLength" | "minProperties" => Form::Count,
        "maximum" | "minimum" => Form::Number,
        "multipleOf" => Form::Step,
        "exclusiveMaximum" | "exclusiveMinimum" => Form::Bound,
        "$dynamicRef" | "$recursiveRef" | "$ref" | "format" | "pattern" => Form::Text,
        "uniqueItems" => Form::Flag,
        _ => Form::Any,
    }
}

const TYPES: [&str; 7] = [
    "string", "number", "integer", "boolean", "null", "object", "array",
];

// ------------------------------------------------------------------ values

/// What a keyword's value must be, if it is something else. Schemas in it are looked at by themselves.
pub(super) fn wrong_value(form: Form, value: &Value) -> Option<String> {
    let holds = match form {
        Form::Schema | Form::Any => true,
        Form::Schemas | Form::Values => value.as_array().is_some_and(|items| !items.is_empty()),
        Form::SchemaOrSchemas => is_schema(value) || value.is_array(),
        Form::SchemaMap => value.is_object(),
        Form::Dependencies => all_of_map(value, |needs| is_schema(needs) || are_names(needs)),
        Form::NameMap => all_of_map(value, are_names),
        Form::Names => are_names(value),
        Form::Types => are_types(value),
        Form::Count => value.as_number().is_some_and(is_count),
        Form::Number => value.is_number(),
        Form::Step => value.as_f64().is_some_and(|step| step > 0.0),
        Form::Bound => value.is_number() || value.is_boolean(),
        Form::Text => value.is_string(),
        Form::Flag => value.is_boolean(),
    };
    (!holds).then(|| format!("must be {}, got {}", allowed(form), shown(value)))
}

fn allowed(form: Form) -> &'static str {
    match form {
        Form::Schema | Form::Any => "a schema",
        Form::Schemas => "a list of schemas that is not empty",
        Form::SchemaOrSchemas => "a schema or a list of them",
        Form::SchemaMap => "an object with schemas",
        Form::Dependencies => "an object with schemas or lists of names",
        Form::NameMap => "an object with lists of names",
        Form::Names => "a list of strings",
        Form::Types => "one or several of string, number, integer, boolean, null, object, array",
        Form::Values => "a list of values that is not empty",
        Form::Count => "a whole number, 0 or more",
        Form::Number => "a number",
        Form::Step => "a number above 0",
        Form::Bound => "a number",
        Form::Text => "a string",
        Form::Flag => "true or false",
    }
}

pub(super) fn is_schema(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn all_of_map(value: &Value, holds: fn(&Value) -> bool) -> bool {
    value.as_object().is_some_and(|map| map.values().all(holds))
}

fn are_names(value: &Value) -> bool {
    value
        .as_array()
        .is_some_and(|names| names.iter().all(Value::is_string))
}

fn are_types(value: &Value) -> bool {
    let is_type = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value.as_array() {
        Some(names) => !names.is_empty() && names.iter().all(is_type),
        None => is_type(value),
    }
}

fn is_count(number: &Number) -> bool {
    let is_whole = |number: f64| number >= 0.0 && number.fract() == 0.0;
    number.is_u64() || number.as_f64().is_some_and(is_whole)
}

/// A value as an error repeats it.
pub(super) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => format!("string \"{}\"", clip(text)),
        Value::Array(items) if items.is_empty() => "an empty list".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

// ------------------------------------------------------------------ schemas inside

/// The schemas in a keyword's value, each with the step that leads to it; none: the value is the schema.
pub(super) fn schemas_in(form: Form, value: &Value) -> Vec<(Option<Segment<'_>>, &Value)> {
    match (form, value) {
        (Form::Schemas | Form::SchemaOrSchemas, Value::Array(items)) => {
            let items = items.iter().enumerate();
            items
                .map(|(index, item)| (Some(Segment::Index(index)), item))
                .collect()
        }
        (Form::Schema | Form::SchemaOrSchemas, schema) => vec![(None, schema)],
        (Form::SchemaMap | Form::Dependencies, Value::Object(named)) => {
            let schemas = named
                .iter()
                .filter(|(_, schema)| form == Form::SchemaMap || is_schema(schema));
            schemas
                .map(|(name, schema)| (Some(Segment::Key(name)), schema))
                .collect()
        }
        _ => Vec::new(),
    }
}
