//! Answers of `/v1/completions`, whole and in chunks. Field order is key order.

use indexmap::IndexMap;
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};

use crate::logprobs::finite_logprob;
use crate::usage::{Chunk, ChunkChoice, FinishReason, MatchedStop, WholeAnswer, WholeChoice};

pub type Completion = WholeAnswer<CompletionChoice>;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompletionChoice {
    pub index: u32,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: FinishReason,
    pub matched_stop: Option<MatchedStop>,
}

/// One event of a streamed answer; per index the last chunk has empty text and the reason.
pub type CompletionChunk = Chunk<CompletionChunkChoice>;

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct CompletionChunkChoice {
    pub index: u32,
    pub text: String,
    pub logprobs: Option<CompletionLogprobs>,
    pub finish_reason: Option<FinishReason>,
    pub matched_stop: Option<MatchedStop>,
}

impl WholeChoice for CompletionChoice {
    const OBJECT: &'static str = "text_completion";
}

impl ChunkChoice for CompletionChunkChoice {
    const OBJECT: &'static str = "text_completion";
    type Logprobs = CompletionLogprobs;

    fn text(index: u32, text: String, logprobs: Option<CompletionLogprobs>) -> Self {
        Self {
            index,
            text,
            logprobs,
            finish_reason: None,
            matched_stop: None,
        }
    }

    fn closing(index: u32, reason: FinishReason, matched_stop: Option<MatchedStop>) -> Self {
        Self {
            index,
            text: String::new(),
            logprobs: None,
            finish_reason: Some(reason),
            matched_stop,
        }
    }
}

/// Log-probabilities of a choice, one entry per token in each list.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct CompletionLogprobs {
    pub tokens: Vec<String>,
    /// `None` for the first token of an echoed prompt, which nothing precedes.
    #[serde(serialize_with = "finite_list")]
    pub token_logprobs: Vec<Option<f32>>,
    /// Token text → logprob of the likeliest tokens, likeliest first; `None` where none were asked for.
    #[serde(serialize_with = "finite_maps")]
    pub top_logprobs: Vec<Option<IndexMap<String, f32>>>,
    /// Where each token starts in the choice's text, in characters.
    pub text_offset: Vec<usize>,
}

fn finite_list<S: Serializer>(values: &[Option<f32>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(values.iter().map(|value| value.map(finite_logprob)))
}

fn finite_maps<S: Serializer>(
    positions: &[Option<IndexMap<String, f32>>],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut seq = serializer.serialize_seq(Some(positions.len()))?;
    for position in positions {
        seq.serialize_element(&position.as_ref().map(FiniteMap))?;
    }
    seq.end()
}

struct FiniteMap<'a>(&'a IndexMap<String, f32>);

impl Serialize for FiniteMap<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (token, logprob) in self.0 {
            map.serialize_entry(token, &finite_logprob(*logprob))?;
        }
        map.end()
    }
}
