//! The keywords that no grammar backend of ours honours.

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::keywords::{Form, form, schemas_in};
use super::schema::{Fault, Leads};
use super::trail::{ROOT, Segment, Trail};

/// Keyword → what to do instead.
///
/// NOTE: what a backend honours in any use may not be here: `tests/contract/test_schema_keywords.py` compares this with
/// the rules of both.
const UNHONOURED: &[(&str, &str)] = &[
    ("not", "list what is allowed by `enum`, `type` or `anyOf`"),
    ("if", "write the cases as `anyOf`"),
    (
        "dependentRequired",
        "write the cases as `anyOf`, each with its `required`",
    ),
    ("dependentSchemas", "write the cases as `anyOf`"),
    (
        "dependencies",
        "write the cases as `anyOf`, each with its `required`",
    ),
    (
        "unevaluatedProperties",
        "use `additionalProperties` beside `properties`",
    ),
    ("unevaluatedItems", "use `items` beside `prefixItems`"),
    (
        "contains",
        "say by `prefixItems` where the item stands, or constrain all by `items`",
    ),
    (
        "uniqueItems",
        "leave it out and check the answer, or list the arrays by `enum`",
    ),
    ("$dynamicRef", "use `$ref` with a pointer"),
    ("$recursiveRef", "use `$ref` with a pointer"),
];

/// The first of them in a schema, among the parts that the root needs. `leads` are the targets of its references.
pub(super) fn first_unhonoured<'a>(root: &'a Value, leads: &Leads<'a>) -> Option<Fault> {
    let is_old = root.get("$schema").and_then(Value::as_str).is_some_and(is_old);
    let mut trail = Trail::default();
    let mut seen = HashSet::new();
    let mut to_visit = vec![(root, ROOT)];
    while let Some((value, place)) = to_visit.pop() {
        let Value::Object(schema) = value else { continue };
        if !seen.insert(std::ptr::from_ref(value)) {
            continue;
        }
        let first_child = to_visit.len();
        if !(is_old && schema.contains_key("$ref")) {
            let mut entries = UNHONOURED.iter();
            let found = entries.find(|(keyword, _)| {
                let value = schema.get(*keyword);
                value.is_some_and(|value| !is_idle(keyword, value, schema))
            });
            if let Some((keyword, advice)) = found {
                let place = trail.step(place, Segment::Key(keyword));
                return Some(Fault {
                    pointer: trail.pointer(place),
                    predicate: format!(
                        "uses `{keyword}`, which no grammar backend of this version honours; {advice}"
                    ),
                });
            }
            for (keyword, value) in schema.iter().filter(|(keyword, _)| is_needed(keyword, schema)) {
                let here = trail.step(place, Segment::Key(keyword));
                for (segment, schema) in schemas_in(form(keyword), value) {
                    let there = segment.map_or(here, |segment| trail.step(here, segment));
                    to_visit.push((schema, there));
                }
            }
        }
        if let Some((target, pointer)) = leads.get(&std::ptr::from_ref(value)) {
            to_visit.push((target, trail.step(ROOT, Segment::At(pointer))));
        }
        to_visit[first_child..].reverse();
    }
    None
}

/// In drafts before 2019-09, what stands beside `$ref` says nothing.
fn is_old(dialect: &str) -> bool {
    (3..=7).any(|draft| dialect.contains(&format!("draft-0{draft}")))
}

/// A value that asks for nothing.
fn is_idle(keyword: &str, value: &Value, schema: &Map<String, Value>) -> bool {
    let is_empty = value.as_object().is_some_and(Map::is_empty);
    let number = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    match keyword {
        "not" => value == &Value::Bool(false),
        "if" => !schema.contains_key("then") && !schema.contains_key("else"),
        "dependentRequired" | "dependentSchemas" | "dependencies" => is_empty,
        "unevaluatedProperties" | "unevaluatedItems" => is_empty || value == &Value::Bool(true),
        "contains" => number("minContains") == Some(0.0) && !schema.contains_key("maxContains"),
        "uniqueItems" => value == &Value::Bool(false) || number("maxItems").is_some_and(|most| most <= 1.0),
        _ => false,
    }
}

/// Whether the schemas in a keyword's value say something of the answer by themselves.
fn is_needed(keyword: &str, schema: &Map<String, Value>) -> bool {
    match form(keyword) {
        Form::Schemas => true,
        Form::SchemaMap => matches!(keyword, "properties" | "patternProperties"),
        Form::Schema | Form::SchemaOrSchemas => match keyword {
            "items" | "additionalProperties" | "propertyNames" => true,
            "additionalItems" => schema.get("items").is_some_and(Value::is_array),
            _ => false,
        },
        _ => false,
    }
}
