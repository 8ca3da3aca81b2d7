//! The answer of `/generate`. Field order is key order.

use serde::ser::SerializeTuple;
use serde::{Serialize, Serializer};

use crate::logprobs::finite_logprob;
use crate::usage::{CachedTokensDetails, MatchedStop};

/// One answer, or one event of a streamed one. Text, ids and logprobs are cumulative in a stream.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GenerateResponse {
    pub text: String,
    pub output_ids: Vec<u32>,
    pub meta_info: MetaInfo,
    /// Position of the answer in the batch; only in the events of a streamed batch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<usize>,
}

/// What is known about an answer besides its text.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct MetaInfo {
    /// The request id (`rid`).
    pub id: String,
    /// `None` while the generation runs.
    pub finish_reason: Option<GenerateFinish>,
    pub prompt_tokens: u32,
    pub weight_version: String,
    /// How often the request lost its memory to others and was computed again.
    pub num_retractions: u32,
    pub reasoning_tokens: u32,
    pub dp_rank: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_token_logprobs: Option<Vec<LogprobTriple>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_token_logprobs: Option<Vec<LogprobTriple>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_token_logprobs_length: Option<usize>,
    /// Per position the likeliest tokens, or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_top_logprobs: Option<Vec<Option<Vec<LogprobTriple>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_top_logprobs: Option<Vec<Option<Vec<LogprobTriple>>>>,
    /// Per position the tokens of `token_ids_logprob`, or null.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_token_ids_logprobs: Option<Vec<Option<Vec<LogprobTriple>>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_token_ids_logprobs: Option<Vec<Option<Vec<LogprobTriple>>>>,
    pub completion_tokens: u32,
    /// Prompt tokens that the worker found in its prefix cache.
    pub cached_tokens: u32,
    /// Where they came from, where the worker tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached_tokens_details: Option<CachedTokensDetails>,
    /// Seconds from accepting the request to its end; only when finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub e2e_latency: Option<f64>,
    /// Only when finished, where the worker measures.
    #[serde(flatten)]
    pub timings: Option<Timings>,
}

/// When an answer passed its stages. Moments are in seconds since the epoch; those of the worker are by its clock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Timings {
    pub request_received_ts: f64,
    /// Seconds in the worker's queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue_time: Option<f64>,
    /// The worker began to compute the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forward_entry_time: Option<f64>,
    /// The worker had computed the whole prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prefill_finished_time: Option<f64>,
    /// Seconds from accepting the request to its first token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token_latency: Option<f64>,
    /// Tokens per second after the first one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decode_throughput: Option<f64>,
    pub response_sent_to_client_ts: f64,
}

/// Why a generation ended, in the native form.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum GenerateFinish {
    Stop {
        matched: Option<MatchedStop>,
    },
    Length {
        length: u32,
    },
    Abort {
        message: String,
        status_code: Option<u16>,
        err_type: Option<String>,
    },
}

/// `[logprob or null, token id, text or null]`.
#[derive(Debug, Clone, PartialEq)]
pub struct LogprobTriple {
    /// `None` for the first token of the prompt, which nothing precedes.
    pub logprob: Option<f32>,
    pub token_id: u32,
    pub text: Option<String>,
}

impl Serialize for LogprobTriple {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(3)?;
        tuple.serialize_element(&self.logprob.map(finite_logprob))?;
        tuple.serialize_element(&self.token_id)?;
        tuple.serialize_element(&self.text)?;
        tuple.end()
    }
}
