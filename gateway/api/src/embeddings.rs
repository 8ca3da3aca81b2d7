//! `/v1/embeddings` and `/encode`: vectors of prompts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize, Serializer};

use crate::body::Body;
use crate::error::ApiError;
use crate::generate::{check_batch, native_field, prompts_of};
use crate::routing::Routing;
use crate::shapes::{OneOrMany, Prompt, Prompts, TokenIds};
use crate::unsupported;

/// What either endpoint asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingRequest {
    pub model: Option<String>,
    /// Not empty, and none of them is empty.
    pub prompts: Vec<Prompt>,
    /// One entry per prompt.
    pub routing: Vec<Routing>,
    /// The prompts were a list.
    pub is_batch: bool,
    /// Vectors are base64 of little-endian floats.
    pub as_base64: bool,
}

#[derive(Deserialize)]
struct RawOpenAi {
    model: Option<String>,
    input: Prompts,
    encoding_format: Option<EncodingFormat>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum EncodingFormat {
    Float,
    Base64,
}

#[derive(Deserialize)]
struct RawNative {
    model: Option<String>,
    text: Option<OneOrMany<String>>,
    input_ids: Option<TokenIds>,
}

impl EmbeddingRequest {
    /// Reads the body of `/v1/embeddings`.
    pub fn parse_openai(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = Body::parse(bytes)?;
        unsupported::check_embedding(&body)?;
        let raw: RawOpenAi = body.read()?;
        let (prompts, is_batch) = match raw.input {
            Prompts::One(prompt) => (vec![prompt], false),
            Prompts::Many(prompts) => (prompts, true),
        };
        let is_empty = |prompt: &Prompt| match prompt {
            Prompt::Text(text) => text.is_empty(),
            Prompt::Ids(ids) => ids.is_empty(),
        };
        if prompts.is_empty() || prompts.iter().any(is_empty) {
            let message = "input must not be empty; send some text or token ids";
            return Err(ApiError::bad_request("input", message));
        }
        let as_base64 = raw.encoding_format == Some(EncodingFormat::Base64);
        Self::checked(&body, raw.model, (prompts, is_batch), ("input", as_base64))
    }

    /// Reads the body of `/encode`.
    pub fn parse_native(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = Body::parse(bytes)?;
        unsupported::check_embedding(&body)?;
        let raw: RawNative = body.read()?;
        let prompts = prompts_of(raw.text, raw.input_ids)?;
        let field = native_field(&prompts.0);
        Self::checked(&body, raw.model, prompts, (field, false))
    }

    fn checked(
        body: &Body,
        model: Option<String>,
        (prompts, is_batch): (Vec<Prompt>, bool),
        (field, as_base64): (&str, bool),
    ) -> Result<Self, ApiError> {
        check_batch(field, prompts.len(), 1)?;
        Ok(Self {
            model,
            routing: Routing::batch(body, prompts.len(), is_batch, 1)?,
            prompts,
            is_batch,
            as_base64,
        })
    }
}

/// The answer of `/v1/embeddings`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EmbeddingList {
    pub object: &'static str,
    pub data: Vec<EmbeddingItem>,
    pub model: String,
    pub usage: EmbeddingUsage,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EmbeddingItem {
    pub object: &'static str,
    pub embedding: Vector,
    pub index: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EmbeddingUsage {
    pub prompt_tokens: u64,
    pub total_tokens: u64,
}

/// A vector in one of its two forms.
#[derive(Debug, Clone, PartialEq)]
pub enum Vector {
    Floats(Vec<f32>),
    Base64(Vec<f32>),
}

impl Serialize for Vector {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Floats(values) => values.serialize(serializer),
            Self::Base64(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                serializer.serialize_str(&STANDARD.encode(bytes))
            }
        }
    }
}

/// An answer of `/encode`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Encoded {
    pub embedding: Vec<f32>,
    pub meta_info: EncodedInfo,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct EncodedInfo {
    pub id: String,
    pub prompt_tokens: u32,
    pub e2e_latency: f64,
}
