//! What a generation is asked with.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value};

/// One generation. Its defaults ask for one sampled answer without limits of length or time.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateSpec {
    /// Unique among the worker's live requests.
    pub request_id: String,
    pub input_ids: Vec<u32>,
    pub sampling: Sampling,
    pub return_logprob: bool,
    /// First prompt position whose log probabilities are reported; -1 = those of the answer only.
    pub logprob_start_len: i32,
    pub top_logprobs_num: u32,
    /// Ids whose log probabilities are reported at every position.
    pub token_ids_logprob: Vec<u32>,
    /// Unset = the engine's default.
    pub priority: Option<i32>,
    /// Namespace of the prefix cache; "" differs from unset.
    pub extra_key: Option<String>,
    /// Appended to the namespace.
    pub cache_salt: Option<String>,
    /// The name of an adapter; empty = none.
    pub lora_name: String,
    pub routing_key: Option<String>,
    /// The conversation on the worker that the prompt continues.
    pub session: Option<Session>,
    /// A serialized processor that the engine runs on the logits; empty = none.
    pub custom_logit_processor: String,
    /// Whether the model reasons before its constraint begins.
    pub require_reasoning: bool,
    pub data_parallel_rank: Option<u32>,
    /// From the call to its last message; sent as `grpc-timeout` and kept on this side too.
    pub timeout: Option<Duration>,
    /// Request metadata such as `traceparent`, `tracestate` and `x-request-id`.
    pub trace: Vec<(String, String)>,
}

impl Default for GenerateSpec {
    fn default() -> Self {
        Self {
            request_id: String::new(),
            input_ids: Vec::new(),
            sampling: Sampling::default(),
            return_logprob: false,
            logprob_start_len: -1,
            top_logprobs_num: 0,
            token_ids_logprob: Vec::new(),
            priority: None,
            extra_key: None,
            cache_salt: None,
            lora_name: String::new(),
            routing_key: None,
            session: None,
            custom_logit_processor: String::new(),
            require_reasoning: false,
            data_parallel_rank: None,
            timeout: None,
            trace: Vec::new(),
        }
    }
}

/// One vector.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbedSpec {
    /// Unique among the worker's live requests.
    pub request_id: String,
    pub input_ids: Vec<u32>,
    pub timeout: Duration,
    /// Request metadata such as `traceparent`.
    pub trace: Vec<(String, String)>,
}

/// Which tokens of a session a prompt continues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Session {
    pub id: String,
    /// The request to go on from; unset = the start of the session.
    pub rid: Option<String>,
    /// Tokens of that request that are kept; unset = all.
    pub offset: Option<u32>,
    /// What came after that request is dropped.
    pub replace: bool,
    /// Only the prompt of that request is kept.
    pub drop_previous_output: bool,
}

/// How tokens are chosen and when to stop. Every field goes on the wire: proto zeros are not the defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// 0 = greedy.
    pub temperature: f32,
    /// In (0, 1].
    pub top_p: f32,
    /// -1 = off.
    pub top_k: i32,
    pub min_p: f32,
    pub frequency_penalty: f32,
    pub presence_penalty: f32,
    pub repetition_penalty: f32,
    /// Unset = what the context leaves.
    pub max_new_tokens: Option<u32>,
    pub min_new_tokens: u32,
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    pub stop_regex: Vec<String>,
    pub ignore_eos: bool,
    pub no_stop_trim: bool,
    pub skip_special_tokens: bool,
    pub spaces_between_special_tokens: bool,
    pub constraint: Option<Constraint>,
    /// Answers per prompt, at least 1.
    pub n: u32,
    /// Tokens per message; unset = the engine's default.
    pub stream_interval: Option<u32>,
    /// Token id → added to its logit.
    pub logit_bias: BTreeMap<u32, f32>,
    pub custom_params: Option<Map<String, Value>>,
    pub seed: Option<i64>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            max_new_tokens: None,
            min_new_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            stop_regex: Vec::new(),
            ignore_eos: false,
            no_stop_trim: false,
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            constraint: None,
            n: 1,
            stream_interval: None,
            logit_bias: BTreeMap::new(),
            custom_params: None,
            seed: None,
        }
    }
}

/// What the answer must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constraint {
    /// A JSON schema as text.
    JsonSchema(String),
    Regex(String),
    Ebnf(String),
    /// A structural tag description as JSON text.
    StructuralTag(String),
}
