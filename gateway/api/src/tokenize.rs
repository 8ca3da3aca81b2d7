//! `/tokenize` and `/detokenize`, the same under `/v1/`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body::Body;
use crate::chat::{Asked, RawMessage, TemplateOptions, normalize};
use crate::error::ApiError;
use crate::limits::MAX_BATCH;
use crate::sampling::require;
use crate::shapes::{OneOrMany, TokenIds};

/// Asks for the token ids of some text or of a rendered chat.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenizeRequest {
    pub model: Option<String>,
    pub input: TokenizeInput,
    /// Adds what the tokenizer puts around a text, such as BOS. Only for `Prompts`.
    pub add_special_tokens: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum TokenizeInput {
    /// Empty texts are allowed.
    Prompts(OneOrMany<String>),
    Chat {
        messages: Value,
        template: TemplateOptions,
    },
}

#[derive(Deserialize)]
struct RawTokenize {
    model: Option<String>,
    prompt: Option<OneOrMany<String>>,
    messages: Option<Vec<RawMessage>>,
    add_special_tokens: Option<bool>,
}

impl TokenizeRequest {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = Body::parse(bytes)?;
        let raw: RawTokenize = body.read()?;
        let input = match (raw.prompt, raw.messages) {
            (Some(prompt), None) => TokenizeInput::Prompts(prompt),
            (None, Some(messages)) => {
                let messages = normalize(messages)?;
                TokenizeInput::Chat {
                    template: TemplateOptions::read(&body, &messages, Asked::read(&body)?.shown)?,
                    messages,
                }
            }
            (None, None) => {
                return Err(ApiError::missing(
                    "prompt",
                    "either prompt or messages is required",
                ));
            }
            (Some(_), Some(_)) => {
                return Err(ApiError::bad_request(
                    "messages",
                    "prompt and messages exclude each other; send one",
                ));
            }
        };
        if let TokenizeInput::Prompts(OneOrMany::Many(prompts)) = &input {
            check_batch("prompt", prompts.len())?;
        }
        Ok(Self {
            model: raw.model,
            input,
            add_special_tokens: raw.add_special_tokens.unwrap_or(true),
        })
    }
}

fn check_batch(field: &str, len: usize) -> Result<(), ApiError> {
    require(
        len <= MAX_BATCH,
        field,
        len,
        &format!("a list of at most {MAX_BATCH}"),
    )
}

/// Lists where the request gave a list.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenizeResponse {
    pub tokens: OneOrMany<Vec<u32>>,
    pub count: OneOrMany<usize>,
    pub char_count: OneOrMany<usize>,
    pub max_model_len: Option<u32>,
}

/// Asks for the text of token ids.
#[derive(Debug, Clone, PartialEq)]
pub struct DetokenizeRequest {
    pub model: Option<String>,
    pub tokens: OneOrMany<Vec<u32>>,
    pub skip_special_tokens: bool,
}

#[derive(Deserialize)]
struct RawDetokenize {
    model: Option<String>,
    tokens: TokenIds,
    skip_special_tokens: Option<bool>,
}

impl DetokenizeRequest {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let raw: RawDetokenize = Body::parse(bytes)?.read()?;
        let tokens = match raw.tokens {
            TokenIds::One(ids) => OneOrMany::One(ids),
            TokenIds::Many(lists) => {
                check_batch("tokens", lists.len())?;
                OneOrMany::Many(lists.into_iter().map(Option::unwrap_or_default).collect())
            }
        };
        Ok(Self {
            model: raw.model,
            tokens,
            skip_special_tokens: raw.skip_special_tokens.unwrap_or(true),
        })
    }
}

/// A list where the request gave one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DetokenizeResponse {
    pub text: OneOrMany<String>,
}
