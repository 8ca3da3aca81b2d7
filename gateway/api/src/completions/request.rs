//! The request of `/v1/completions`.

use serde::Deserialize;

use crate::body::Body;
use crate::error::ApiError;
use crate::generate::check_batch;
use crate::limits::MAX_TOP_LOGPROBS;
use crate::routing::Routing;
use crate::sampling::{self, Sampling, require};
use crate::shapes::{Prompt, Prompts};
use crate::unsupported;
use crate::usage::{RawStreamOptions, StreamOptions};

/// A completion request that needs no further checking, apart from the model's own limits.
#[derive(Debug, Clone, PartialEq)]
pub struct CompletionRequest {
    /// As the client wrote it; the server knows which names it serves.
    pub model: Option<String>,
    /// Not empty, and none of them is empty. Choice index = position × `n` + sample.
    pub prompts: Vec<Prompt>,
    /// `max_new_tokens` or its default is set.
    pub sampling: Sampling,
    /// Puts the prompt before the answer, in text and logprobs.
    pub echo: bool,
    /// Alternatives per token, 0 to 20; `None` asks for no logprobs.
    pub logprobs: Option<u32>,
    pub stream: bool,
    pub stream_options: StreamOptions,
    /// The usage says from which tiers of the cache tokens came.
    pub return_cached_tokens_details: bool,
    /// One entry per prompt.
    pub routing: Vec<Routing>,
}

/// `max_tokens` when the client gives none.
pub const DEFAULT_MAX_TOKENS: u32 = 16;

#[derive(Deserialize)]
struct RawCompletion {
    model: Option<String>,
    prompt: Prompts,
    echo: Option<bool>,
    logprobs: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<RawStreamOptions>,
    return_cached_tokens_details: Option<bool>,
}

impl CompletionRequest {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = Body::parse(bytes)?;
        unsupported::check_completion(&body)?;
        let raw: RawCompletion = body.read()?;
        let stream = raw.stream.unwrap_or(false);
        if let Some(logprobs) = raw.logprobs {
            let allowed = format!("from 0 to {MAX_TOP_LOGPROBS}");
            require(logprobs <= MAX_TOP_LOGPROBS, "logprobs", logprobs, &allowed)?;
        }
        let (prompts, is_batch) = match raw.prompt {
            Prompts::One(prompt) => (vec![prompt], false),
            Prompts::Many(prompts) => (prompts, true),
        };
        let sampling = sampling::from_openai(&body, Some(DEFAULT_MAX_TOKENS))?;
        check_prompts(&prompts)?;
        check_batch("prompt", prompts.len(), sampling.n)?;
        Ok(Self {
            model: raw.model,
            routing: Routing::batch(&body, prompts.len(), is_batch, sampling.n)?,
            prompts,
            sampling,
            echo: raw.echo.unwrap_or(false),
            logprobs: raw.logprobs,
            stream,
            stream_options: StreamOptions::check(raw.stream_options, stream)?,
            return_cached_tokens_details: raw.return_cached_tokens_details.unwrap_or(false),
        })
    }
}

fn check_prompts(prompts: &[Prompt]) -> Result<(), ApiError> {
    let is_empty = |prompt: &Prompt| match prompt {
        Prompt::Text(text) => text.is_empty(),
        Prompt::Ids(ids) => ids.is_empty(),
    };
    if prompts.is_empty() || prompts.iter().any(is_empty) {
        return Err(ApiError::bad_request(
            "prompt",
            "prompt must not be empty; send some text or token ids",
        ));
    }
    Ok(())
}
