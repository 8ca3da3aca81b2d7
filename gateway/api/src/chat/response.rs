//! Answers of `/v1/chat/completions`, whole and in chunks. Field order is key order.

use serde::Serialize;

use crate::logprobs::ChatLogprobs;
use crate::usage::{Chunk, ChunkChoice, FinishReason, MatchedStop, WholeAnswer, WholeChoice};

pub type ChatCompletion = WholeAnswer<ChatChoice>;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatChoice {
    pub index: u32,
    pub message: ChatMessage,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: FinishReason,
    pub matched_stop: Option<MatchedStop>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatMessage {
    pub role: &'static str,
    /// `None`: the answer consists of calls.
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<Vec<ToolCall>>,
}

/// A function that the model wants to be called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCall {
    pub id: String,
    pub r#type: &'static str,
    pub function: CalledFunction,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CalledFunction {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A JSON object, as text; in a stream the next piece of it.
    pub arguments: String,
}

impl WholeChoice for ChatChoice {
    const OBJECT: &'static str = "chat.completion";
}

impl ChatMessage {
    pub fn assistant(content: String) -> Self {
        Self {
            role: "assistant",
            content: Some(content),
            tool_calls: None,
        }
    }

    pub fn calling(calls: Vec<ToolCall>) -> Self {
        Self {
            role: "assistant",
            content: None,
            tool_calls: Some(calls).filter(|calls| !calls.is_empty()),
        }
    }
}

impl ToolCall {
    pub fn new(id: String, name: String) -> Self {
        Self {
            id,
            r#type: "function",
            function: CalledFunction {
                name: Some(name),
                arguments: String::new(),
            },
        }
    }
}

/// One event of a streamed answer. Per index: one opening chunk with the role, chunks with text, one closing chunk
/// with an empty delta and the reason.
pub type ChatChunk = Chunk<ChatChunkChoice>;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ChatChunkChoice {
    pub index: u32,
    pub delta: ChatDelta,
    pub logprobs: Option<ChatLogprobs>,
    pub finish_reason: Option<FinishReason>,
    pub matched_stop: Option<MatchedStop>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<&'static str>,
    /// Outer `None`: the key is absent. Inner `None`: `null`, as the answer consists of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<Option<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_calls: Option<[ToolCallDelta; 1]>,
}

/// News of one call: first its id and name, then its arguments piece by piece.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolCallDelta {
    /// Counts the calls of an answer.
    pub index: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#type: Option<&'static str>,
    pub function: CalledFunction,
}

impl ChunkChoice for ChatChunkChoice {
    const OBJECT: &'static str = "chat.completion.chunk";
    type Logprobs = ChatLogprobs;

    fn text(index: u32, text: String, logprobs: Option<ChatLogprobs>) -> Self {
        let delta = ChatDelta {
            content: Some(Some(text)),
            ..ChatDelta::default()
        };
        Self {
            logprobs,
            ..Self::of(index, delta)
        }
    }

    fn closing(index: u32, reason: FinishReason, matched_stop: Option<MatchedStop>) -> Self {
        Self {
            finish_reason: Some(reason),
            matched_stop,
            ..Self::of(index, ChatDelta::default())
        }
    }
}

impl ChatChunkChoice {
    /// Opens an answer: the role, and empty content, or none where calls follow.
    pub fn opening(index: u32, is_calling: bool) -> Self {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some((!is_calling).then(String::new)),
            tool_calls: None,
        };
        Self::of(index, delta)
    }

    /// Begins a call.
    pub fn call(index: u32, position: u32, id: String, name: String) -> Self {
        let delta = ToolCallDelta {
            index: position,
            id: Some(id),
            r#type: Some("function"),
            function: CalledFunction {
                name: Some(name),
                arguments: String::new(),
            },
        };
        Self::of_call(index, delta)
    }

    /// More arguments of a call.
    pub fn arguments(index: u32, position: u32, arguments: String) -> Self {
        let delta = ToolCallDelta {
            index: position,
            id: None,
            r#type: None,
            function: CalledFunction {
                name: None,
                arguments,
            },
        };
        Self::of_call(index, delta)
    }

    /// Tokens that are told by their log probabilities alone.
    pub fn silent(index: u32, logprobs: ChatLogprobs) -> Self {
        Self {
            logprobs: Some(logprobs),
            ..Self::of(index, ChatDelta::default())
        }
    }

    fn of_call(index: u32, call: ToolCallDelta) -> Self {
        let delta = ChatDelta {
            tool_calls: Some([call]),
            ..ChatDelta::default()
        };
        Self::of(index, delta)
    }

    fn of(index: u32, delta: ChatDelta) -> Self {
        Self {
            index,
            delta,
            logprobs: None,
            finish_reason: None,
            matched_stop: None,
        }
    }
}
