//! The messages of a chat, brought to the one form that chat templates expect.

use std::fmt;

use serde::de::value::SeqAccessDeserializer;
use serde::de::{self, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::clip::clip;
use crate::error::ApiError;

#[derive(Debug, Deserialize)]
pub(crate) struct RawMessage {
    role: Role,
    content: Option<Content>,
    name: Option<String>,
    reasoning_content: Option<String>,
    tool_calls: Option<Vec<Map<String, Value>>>,
    tool_call_id: Option<String>,
    audio: Option<de::IgnoredAny>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
    Function,
}

#[derive(Debug)]
enum Content {
    Text(String),
    Parts(Vec<Part>),
}

#[derive(Debug, Deserialize)]
struct Part {
    r#type: String,
    text: Option<String>,
    refusal: Option<String>,
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ContentVisitor;
        impl<'de> Visitor<'de> for ContentVisitor {
            type Value = Content;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a string or a list of text parts")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Content::Parts)
            }
        }
        deserializer.deserialize_any(ContentVisitor)
    }
}

/// Checks the messages and writes each as the object that a chat template reads.
///
/// Content is always a string: parts are joined, so a text and a list with that text give the same prompt, and
/// an assistant message that only calls tools has empty content. Arguments of old tool calls that are a JSON
/// object in a string become that object; others stay as they came.
pub(crate) fn normalize(messages: Vec<RawMessage>) -> Result<Value, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::bad_request(
            "messages",
            "messages must have at least one message, got an empty list",
        ));
    }
    let normal = messages
        .into_iter()
        .enumerate()
        .map(|(i, message)| normal_message(i, message));
    normal.collect::<Result<Vec<_>, _>>().map(Value::Array)
}

fn normal_message(position: usize, message: RawMessage) -> Result<Value, ApiError> {
    let path = format!("messages[{position}]");
    if message.audio.is_some() {
        let param = format!("{path}.audio");
        let text = format!("{param} is not supported by this version; leave it out");
        return Err(ApiError::unsupported(param, text));
    }
    let content = match message.content {
        Some(content) => text_of(&format!("{path}.content"), content)?,
        None if message.role == Role::Assistant => String::new(),
        None => {
            let param = format!("{path}.content");
            let text = format!("{param} is required; only assistant messages may have none");
            return Err(ApiError::missing(param, text));
        }
    };
    let mut normal = Map::new();
    normal.insert("role".to_owned(), role_value(message.role));
    normal.insert("content".to_owned(), Value::String(content));
    let texts = [
        ("name", message.name),
        ("reasoning_content", message.reasoning_content),
        ("tool_call_id", message.tool_call_id),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            normal.insert(key.to_owned(), Value::String(text));
        }
    }
    if let Some(calls) = message.tool_calls.filter(|calls| !calls.is_empty()) {
        let calls = calls
            .into_iter()
            .map(with_parsed_arguments)
            .map(Value::Object)
            .collect();
        normal.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Ok(Value::Object(normal))
}

fn role_value(role: Role) -> Value {
    let name = match role {
        Role::System => "system",
        Role::Developer => "developer",
        Role::User => "user",
        Role::Assistant => "assistant",
        Role::Tool => "tool",
        Role::Function => "function",
    };
    Value::String(name.to_owned())
}

fn text_of(path: &str, content: Content) -> Result<String, ApiError> {
    let parts = match content {
        Content::Text(text) => return Ok(text),
        Content::Parts(parts) => parts,
    };
    let mut texts = Vec::with_capacity(parts.len());
    for (position, part) in parts.into_iter().enumerate() {
        let param = format!("{path}[{position}]");
        let text = match part.r#type.as_str() {
            "text" => part.text,
            "refusal" => part.refusal,
            other => {
                let text = format!(
                    "{param} has type `{}`, which is not supported by this version; use `text`",
                    clip(other)
                );
                return Err(ApiError::unsupported(param, text));
            }
        };
        let missing = || ApiError::missing(format!("{param}.text"), format!("{param}.text is required"));
        texts.push(text.ok_or_else(missing)?);
    }
    Ok(texts.join(" "))
}

fn with_parsed_arguments(mut call: Map<String, Value>) -> Map<String, Value> {
    let arguments = call
        .get_mut("function")
        .and_then(|function| function.get_mut("arguments"));
    if let Some(arguments) = arguments
        && let Some(Ok(object)) = arguments.as_str().map(serde_json::from_str::<Map<String, Value>>)
    {
        *arguments = Value::Object(object);
    }
    call
}
