//! Structural tags: parts of an answer that have to match a schema, in both forms of the description.

use serde_json::{Map, Value};

use super::keywords::shown;
use super::schema::{self, Fault};
use super::trail::{ROOT, Segment, Trail};

/// Fails where the description is none. Returns the first keyword of a schema in it that no grammar backend of ours
/// honours.
pub(super) fn check(tag: &Value) -> Result<Option<Fault>, Fault> {
    let Value::Object(fields) = tag else {
        return Err(fault("", format!("must be an object, got {}", shown(tag))));
    };
    match (fields.get("structures"), fields.get("format")) {
        (None, None) => Err(fault(
            "",
            "must have `structures` and `triggers`, or `format`".to_owned(),
        )),
        (Some(structures), _) => {
            let triggers = fields.get("triggers").unwrap_or(&Value::Null);
            check_triggers(triggers)?;
            check_structures(structures)
        }
        (None, Some(format)) => check_format(format),
    }
}

fn check_triggers(triggers: &Value) -> Result<(), Fault> {
    let is_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    if triggers.as_array().is_some_and(|list| list.iter().all(is_text)) {
        return Ok(());
    }
    let predicate = format!(
        "must be a list of strings that are not empty, got {}",
        shown(triggers)
    );
    Err(fault("/triggers", predicate))
}

fn check_structures(structures: &Value) -> Result<Option<Fault>, Fault> {
    let Value::Array(structures) = structures else {
        return Err(fault(
            "/structures",
            format!("must be a list, got {}", shown(structures)),
        ));
    };
    let mut unhonoured = None;
    for (index, structure) in structures.iter().enumerate() {
        let place = format!("/structures/{index}");
        let Value::Object(fields) = structure else {
            return Err(fault(
                &place,
                format!("must be an object, got {}", shown(structure)),
            ));
        };
        for key in ["begin", "end"] {
            check_text(fields, key, &place)?;
        }
        let schema = fields.get("schema").unwrap_or(&Value::Null);
        let found = check_schema(schema, &format!("{place}/schema"))?;
        unhonoured = unhonoured.or(found);
    }
    Ok(unhonoured)
}

fn check_text(fields: &Map<String, Value>, key: &str, place: &str) -> Result<(), Fault> {
    match fields.get(key) {
        Some(Value::String(_)) => Ok(()),
        other => {
            let given = shown(other.unwrap_or(&Value::Null));
            let place = format!("{place}/{key}");
            Err(fault(&place, format!("must be a string, got {given}")))
        }
    }
}

/// A tree of formats. Which types there are is for the backend to say; schemas stand where the type is `json_schema`.
fn check_format(format: &Value) -> Result<Option<Fault>, Fault> {
    if !format.get("type").is_some_and(Value::is_string) {
        let predicate = "must be an object with a `type`".to_owned();
        return Err(fault("/format", predicate));
    }
    let mut unhonoured = None;
    let mut trail = Trail::default();
    let mut to_visit = vec![(format, trail.step(ROOT, Segment::Key("format")))];
    while let Some((value, place)) = to_visit.pop() {
        match value {
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    to_visit.push((item, trail.step(place, Segment::Index(index))));
                }
            }
            Value::Object(fields) => {
                let holds_schema = fields.get("type").and_then(Value::as_str) == Some("json_schema");
                for (key, value) in fields {
                    let place = trail.step(place, Segment::Key(key));
                    if holds_schema && key == "json_schema" {
                        unhonoured = unhonoured.or(check_schema(value, &trail.pointer(place))?);
                    } else {
                        to_visit.push((value, place));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(unhonoured)
}

fn check_schema(schema: &Value, place: &str) -> Result<Option<Fault>, Fault> {
    let moved = |inner: Fault| fault(&format!("{place}{}", inner.pointer), inner.predicate);
    schema::check(schema).map(|found| found.map(moved)).map_err(moved)
}

fn fault(pointer: &str, predicate: String) -> Fault {
    Fault {
        pointer: pointer.to_owned(),
        predicate,
    }
}
