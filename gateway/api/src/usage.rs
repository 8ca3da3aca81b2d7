//! Token counts, and why a generation ended.

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
}

impl Usage {
    pub fn new(prompt_tokens: u32, completion_tokens: u32, cached_tokens: u32) -> Self {
        Self {
            prompt_tokens,
            completion_tokens,
            total_tokens: prompt_tokens.saturating_add(completion_tokens),
            prompt_tokens_details: Some(PromptTokensDetails { cached_tokens }),
        }
    }
}

/// `finish_reason` of the OpenAI endpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    Length,
    Abort,
}

impl FinishReason {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
        }
    }
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
