//! Answers that have to call functions: the schema to which they are held, and the form in which they come.

use serde_json::{Map, Value, json};

use super::tools::Tool;
use crate::constraint::{Checked, Constraint, change_each_schema, checked};
use crate::error::ApiError;
use crate::sampling::Sampling;

/// Schemas that are looked at to find out whether arguments are objects.
const MAX_LOOKS: u32 = 500;

/// What the text of an answer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallForm {
    /// The arguments of this function.
    One(String),
    /// A list of `{"name": …, "parameters": …}` with functions of these names.
    List(Vec<String>),
}

/// Calls that the client insists on.
pub(crate) struct Forced {
    form: CallForm,
    checked: Checked,
}

impl Forced {
    /// One call of one function.
    pub(super) fn one(tool: &Tool) -> Result<Self, ApiError> {
        let schema = arguments(tool);
        Self::new(CallForm::One(tool.name.clone()), &schema, &tool.param, [tool])
    }

    /// One or more calls, of any of the functions.
    pub(super) fn list(tools: &[Tool], is_parallel: bool) -> Result<Self, ApiError> {
        let mut definitions = Map::new();
        let mut calls: Vec<Value> = tools.iter().map(|tool| call(tool, &mut definitions)).collect();
        let items = match calls.len() {
            1 => calls.remove(0),
            _ => json!({"anyOf": calls}),
        };
        let mut schema = json!({"type": "array", "minItems": 1, "items": items});
        if !is_parallel {
            schema["maxItems"] = 1.into();
        }
        if !definitions.is_empty() {
            schema["$defs"] = Value::Object(definitions);
        }
        let names = tools.iter().map(|tool| tool.name.clone()).collect();
        Self::new(CallForm::List(names), &schema, "tools", tools)
    }

    fn new<'a>(
        form: CallForm,
        schema: &Value,
        param: &str,
        tools: impl IntoIterator<Item = &'a Tool>,
    ) -> Result<Self, ApiError> {
        let mut unhonoured = tools.into_iter().filter_map(|tool| tool.unhonoured.clone());
        let checked = checked(param, Constraint::JsonSchema(schema.to_string()))?;
        Ok(Self {
            form,
            checked: Checked {
                unhonoured: unhonoured.next(),
                ..checked
            },
        })
    }

    /// Holds the answer to the calls. The client may ask for no other form then.
    pub(super) fn apply(self, sampling: &mut Sampling) -> Result<CallForm, ApiError> {
        if sampling.constraint.is_some() {
            let message = "tool_choice makes the answer a call, so it excludes response_format, json_schema, regex, \
                           ebnf and structural_tag; leave one of them out, or set tool_choice to `auto`";
            return Err(ApiError::bad_request("tool_choice", message));
        }
        sampling.constrain(Some(self.checked));
        Ok(self.form)
    }
}

/// The schema of one call. Schemas with references move into `$defs`, under the function's name.
fn call(tool: &Tool, definitions: &mut Map<String, Value>) -> Value {
    let mut parameters = arguments(tool);
    if moved_below(&mut parameters, &format!("#/$defs/{}", tool.name)) {
        let reference = format!("#/$defs/{}", tool.name);
        definitions.insert(tool.name.clone(), parameters);
        parameters = json!({"$ref": reference});
    }
    json!({
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": parameters},
        "required": ["name", "parameters"],
        "additionalProperties": false,
    })
}

/// The schema of a function's arguments, which are an object.
fn arguments(tool: &Tool) -> Value {
    match &tool.parameters {
        None => json!({"type": "object", "properties": {}, "additionalProperties": false}),
        Some(root) if are_objects(root, root, &mut { MAX_LOOKS }) => root.clone(),
        Some(Value::Object(schema)) => {
            let mut typed = Map::from_iter([("type".to_owned(), "object".into())]);
            typed.extend(schema.clone());
            Value::Object(typed)
        }
        // `true`, as anything else is refused before.
        Some(_) => json!({"type": "object"}),
    }
}

/// Whether a schema says by itself that its values are objects. False after so many looks that it cannot be told.
fn are_objects(schema: &Value, root: &Value, looks: &mut u32) -> bool {
    let Some(left) = looks.checked_sub(1) else {
        return false;
    };
    *looks = left;
    if let Some(given) = schema.get("type") {
        return given == "object";
    }
    let parts = |keyword: &str| {
        schema
            .get(keyword)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
    };
    let target = schema.get("$ref").and_then(Value::as_str);
    let target = target.and_then(|reference| root.pointer(reference.strip_prefix('#')?));
    target.is_some_and(|target| are_objects(target, root, looks))
        || parts("allOf").any(|part| are_objects(part, root, looks))
        || ["anyOf", "oneOf"].iter().any(|keyword| {
            schema.get(*keyword).is_some() && parts(keyword).all(|part| are_objects(part, root, looks))
        })
        || schema.get("enum").is_some() && parts("enum").all(Value::is_object)
        || schema.get("const").is_some_and(Value::is_object)
}

/// Makes a schema part of another one, at `place`; true if it has references.
fn moved_below(schema: &mut Value, place: &str) -> bool {
    let mut own_id = String::new();
    if let Value::Object(root) = schema {
        root.shift_remove("$schema");
        for key in ["$id", "id"] {
            if root.get(key).is_some_and(Value::is_string)
                && let Some(Value::String(id)) = root.shift_remove(key)
            {
                id.trim_end_matches('#').clone_into(&mut own_id);
            }
        }
    }
    let mut has_references = false;
    change_each_schema(schema, |schema| {
        if let Some(Value::String(reference)) = schema.get_mut("$ref") {
            has_references = true;
            let local = reference.strip_prefix(own_id.as_str()).unwrap_or(reference);
            let pointer = local.strip_prefix('#').unwrap_or(local);
            let is_pointer = pointer.is_empty() || local.starts_with("#/");
            if is_pointer {
                *reference = format!("{place}{pointer}");
            }
        }
    });
    has_references
}
