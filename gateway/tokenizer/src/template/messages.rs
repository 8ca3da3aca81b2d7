//! What is done to messages before a template sees them.

use serde_json::{Map, Value};

use crate::error::TemplateError;

/// The names under which the reasoning of a message is passed, the standard one first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A conversation in the form that templates expect.
pub(super) struct Messages(Vec<Map<String, Value>>);

impl Messages {
    /// Drops keys that are null (templates test for presence and would write `None`), passes reasoning under
    /// the names that templates read, and joins text parts unless `takes_parts`.
    pub(super) fn new(messages: &Value, takes_parts: bool) -> Result<Self, TemplateError> {
        let list = messages
            .as_array()
            .ok_or_else(|| TemplateError::NotMessages(kind(messages).to_owned()))?;
        let mut prepared = Vec::with_capacity(list.len());
        for message in list {
            let message = message
                .as_object()
                .ok_or_else(|| TemplateError::NotMessages(format!("a list with {} in it", kind(message))))?;
            let present = message.iter().filter(|(_, value)| !value.is_null());
            let mut message = with_reasoning_names(present.map(|(k, v)| (k.clone(), v.clone())).collect());
            if !takes_parts && let Some(text) = message.get("content").and_then(joined_text) {
                message.insert("content".to_owned(), Value::from(text));
            }
            prepared.push(message);
        }
        Ok(Self(prepared))
    }

    pub(super) fn list(&self) -> &[Map<String, Value>] {
        &self.0
    }

    /// Appends `mark` to the text of the final message; returns the text without it.
    pub(super) fn mark_end(&mut self, mark: &str) -> Result<String, TemplateError> {
        let nothing = |what: &str| TemplateError::NothingToContinue(what.to_owned());
        let message = self
            .0
            .last_mut()
            .ok_or_else(|| nothing("there are no messages; give at least one"))?;
        let text = match message.get_mut("content") {
            Some(Value::String(text)) => text,
            Some(Value::Array(parts)) => match parts.iter_mut().rev().find_map(|part| part.get_mut("text")) {
                Some(Value::String(text)) => text,
                _ => return Err(nothing("the final message has no text part; give it one")),
            },
            _ => {
                return Err(nothing(
                    "the final message has no content; give it text to continue",
                ));
            }
        };
        let unmarked = text.clone();
        text.push_str(mark);
        Ok(unmarked)
    }

    /// Gives messages that consist of tool calls alone an empty content; false where there is none.
    pub(super) fn fill_missing_content(&mut self) -> bool {
        let mut filled = false;
        for message in &mut self.0 {
            if message.contains_key("tool_calls") && !message.contains_key("content") {
                message.insert("content".to_owned(), Value::from(""));
                filled = true;
            }
        }
        filled
    }
}

/// `thinking` comes first and `reasoning_content` in its place or last, as in the reference, where templates
/// that write a whole message show this order.
fn with_reasoning_names(message: Map<String, Value>) -> Map<String, Value> {
    let Some(reasoning) = REASONING.iter().find_map(|name| message.get(*name)).cloned() else {
        return message;
    };
    let mut named = Map::from_iter([("thinking".to_owned(), reasoning.clone())]);
    named.extend(message);
    named.insert("reasoning_content".to_owned(), reasoning);
    named
}

/// The texts of a list that consists of text parts alone.
fn joined_text(content: &Value) -> Option<String> {
    let texts: Option<Vec<&str>> = content
        .as_array()?
        .iter()
        .map(|part| {
            if part["type"] == "text" {
                part["text"].as_str()
            } else {
                part.as_str()
            }
        })
        .collect();
    texts.map(|texts| texts.join("\n"))
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
