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
    pub content: Option<String>,
}

impl WholeChoice for ChatChoice {
    const OBJECT: &'static str = "chat.completion";
}

impl ChatMessage {
    pub fn assistant(content: String) -> Self {
        Self {
            role: "assistant",
            content: Some(content),
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
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
}

impl ChunkChoice for ChatChunkChoice {
    const OBJECT: &'static str = "chat.completion.chunk";
    type Logprobs = ChatLogprobs;

    fn text(index: u32, text: String, logprobs: Option<ChatLogprobs>) -> Self {
        let delta = ChatDelta {
            role: None,
            content: Some(text),
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
    /// Opens an answer: the role, and empty content.
    pub fn opening(index: u32) -> Self {
        let delta = ChatDelta {
            role: Some("assistant"),
            content: Some(String::new()),
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
