//! Log-probabilities as chat answers carry them.

use serde::{Serialize, Serializer};

/// `logprobs` of a chat choice.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
}

/// One token of the answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TokenLogprob {
    pub token: String,
    #[serde(serialize_with = "finite")]
    pub logprob: f32,
    /// The token's own bytes, also where they are a part of a character.
    pub bytes: Vec<u8>,
    pub top_logprobs: Vec<TopLogprob>,
}

/// One of the likeliest tokens at a position.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TopLogprob {
    pub token: String,
    #[serde(serialize_with = "finite")]
    pub logprob: f32,
    pub bytes: Vec<u8>,
}

/// What the OpenAI API writes for a token that cannot come, JSON having no infinity.
pub const IMPOSSIBLE_LOGPROB: f32 = -9999.0;

/// A logprob that JSON can hold.
pub fn finite_logprob(logprob: f32) -> f32 {
    if logprob.is_nan() {
        IMPOSSIBLE_LOGPROB
    } else {
        logprob.clamp(IMPOSSIBLE_LOGPROB, 0.0)
    }
}

pub(crate) fn finite<S: Serializer>(logprob: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f32(finite_logprob(*logprob))
}
