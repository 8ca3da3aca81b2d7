//! Token counts, why a generation ended, and the answers of the OpenAI endpoints that carry both, whole and in chunks.

use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// What a request cost, in tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: Option<PromptTokensDetails>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct PromptTokensDetails {
    /// Prompt tokens that the worker found in its prefix cache.
    pub cached_tokens: u32,
    /// Where they came from, if the client asked and the worker tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens_details: Option<CachedTokensDetails>,
}

/// Prompt tokens by the tier of the cache that held them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct CachedTokensDetails {
    pub device: u32,
    pub host: u32,
    pub storage: u32,
}

impl Usage {
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: Some(PromptTokensDetails {
                cached_tokens,
                cached_tokens_details: None,
            }),
        }
    }

    #[must_use]
    pub fn with_details(mut self, details: Option<CachedTokensDetails>) -> Self {
        if let Some(prompt) = &mut self.prompt_tokens_details {
            prompt.cached_tokens_details = details;
        }
        self
    }
}

/// `finish_reason` of the OpenAI endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    /// As `Stop`, of an answer that calls functions.
    ToolCalls,
    Length,
    Abort,
}

/// The token or the text that ended a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum MatchedStop {
    Token(u32),
    Text(String),
}

/// What the chunks of a stream carry besides the answer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamOptions {
    /// One more chunk at the end, without choices, with the usage of the whole request.
    pub include_usage: bool,
    /// Usage so far in every chunk.
    pub continuous_usage_stats: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct RawStreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

impl StreamOptions {
    /// Options without `stream` are a mistake; `null` counts as absent.
    pub(crate) fn check(raw: Option<RawStreamOptions>, stream: bool) -> Result<Self, ApiError> {
        match raw {
            Some(_) if !stream => Err(ApiError::bad_request(
                "stream_options",
                "stream_options is only allowed together with `stream: true`",
            )),
            Some(raw) => Ok(Self {
                include_usage: raw.include_usage.unwrap_or(false),
                continuous_usage_stats: raw.continuous_usage_stats.unwrap_or(false),
            }),
            None => Ok(Self::default()),
        }
    }
}

/// A whole answer of an OpenAI endpoint. Field order is key order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WholeAnswer<C> {
    pub id: String,
    pub object: &'static str,
    /// Seconds since the epoch.
    pub created: u64,
    pub model: String,
    pub choices: Vec<C>,
    pub usage: Usage,
}

/// What the whole answers of one endpoint are about.
pub trait WholeChoice: Serialize {
    /// The value of the answer's `object` key.
    const OBJECT: &'static str;
}

impl<C: WholeChoice> WholeAnswer<C> {
    pub fn new(id: String, created: u64, model: String, choices: Vec<C>, usage: Usage) -> Self {
        Self {
            id,
            object: C::OBJECT,
            created,
            model,
            choices,
            usage,
        }
    }
}

/// One event of a streamed answer of an OpenAI endpoint. Field order is key order.
///
/// Order per index: the chunks of its choice, the last one with the reason; then, if asked for, one chunk for all
/// without choices that carries the usage.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Chunk<C> {
    pub id: String,
    pub object: &'static str,
    /// Seconds since the epoch.
    pub created: u64,
    pub model: String,
    pub choices: Vec<C>,
    /// Outer `None`: the key is absent, as nobody asked for usage. Inner `None`: `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Option<Usage>>,
}

/// What the chunks of one endpoint are about.
pub trait ChunkChoice: Serialize {
    /// The value of the chunk's `object` key.
    const OBJECT: &'static str;
    type Logprobs;

    /// More text.
    fn text(index: u32, text: String, logprobs: Option<Self::Logprobs>) -> Self;

    /// Closes an answer: no text, only the reason.
    fn closing(index: u32, reason: FinishReason, matched_stop: Option<MatchedStop>) -> Self;
}

impl<C: ChunkChoice> Chunk<C> {
    /// A chunk for some choices; set `usage` where the client asked for it.
    pub fn new(id: String, created: u64, model: String, choices: Vec<C>) -> Self {
        Self {
            id,
            object: C::OBJECT,
            created,
            model,
            choices,
            usage: None,
        }
    }
}
