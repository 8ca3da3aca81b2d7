//! What a worker tells about itself.

use serde::Serialize;
use serde_json::{Map, Value};

/// The answer to a health probe. `healthy` is false also where the worker answers but cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Health {
    pub healthy: bool,
    pub message: String,
}

/// A vector, and the length of its prompt in tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    pub values: Vec<f32>,
    pub prompt_tokens: u32,
}

/// The card of the served model.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ModelInfo {
    pub model_path: String,
    pub tokenizer_path: String,
    /// Empty where the worker names none; `model_path` stands in then.
    pub served_model_name: String,
    pub is_generation: bool,
    pub weight_version: String,
    /// Tokens of prompt and answer; 0 = not told.
    pub max_context_length: u32,
    /// Tokens of the longest prompt; 0 = not told.
    pub max_req_input_len: u32,
    pub vocab_size: u32,
    pub supports_vision: bool,
    pub model_type: String,
    pub architectures: Vec<String>,
    pub eos_token_ids: Vec<u32>,
    pub pad_token_id: i32,
    pub bos_token_id: i32,
    /// What `generation_config.json` sets, by the names of the sampling parameters.
    pub default_sampling_params: Map<String, Value>,
    /// What the operator set, likewise.
    pub preferred_sampling_params: Map<String, Value>,
}

impl ModelInfo {
    /// The name that clients call the model by.
    pub fn model_id(&self) -> &str {
        if self.served_model_name.is_empty() {
            &self.model_path
        } else {
            &self.served_model_name
        }
    }
}

/// Load of one data-parallel rank. Token counts are of the KV pool.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Load {
    pub dp_rank: u32,
    pub num_running_reqs: u32,
    pub num_waiting_reqs: u32,
    pub num_total_reqs: u32,
    pub num_used_tokens: u32,
    pub max_total_num_tokens: u32,
    pub num_waiting_uncached_tokens: u32,
    pub max_running_requests: u32,
    /// Used share of the pool, 0 … 1.
    pub token_usage: f64,
    /// Generated tokens per second.
    pub gen_throughput: f64,
    pub cache_hit_rate: f64,
    pub utilization: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryLoad>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculative: Option<SpeculativeLoad>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraLoad>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disaggregation: Option<DisaggregationLoad>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queues: Option<QueueLoad>,
}

/// Sizes in gigabytes, and the pool's capacity in tokens.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct MemoryLoad {
    pub weight_gb: f64,
    pub kv_cache_gb: f64,
    pub graph_gb: f64,
    pub token_capacity: u32,
}

/// Speculative decoding: mean accepted tokens per step, accepted share of drafts.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct SpeculativeLoad {
    pub accept_length: f64,
    pub accept_rate: f64,
}

/// Adapter slots.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct LoraLoad {
    pub slots_used: u32,
    pub slots_total: u32,
    pub utilization: f64,
}

/// Queues and link of a prefill/decode pair.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct DisaggregationLoad {
    pub mode: String,
    pub prefill_prealloc_queue_reqs: u32,
    pub prefill_inflight_queue_reqs: u32,
    pub decode_prealloc_queue_reqs: u32,
    pub decode_transfer_queue_reqs: u32,
    pub decode_retracted_queue_reqs: u32,
    pub kv_transfer_speed_gb_s: f64,
    pub kv_transfer_latency_ms: f64,
}

/// Requests per queue.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct QueueLoad {
    pub waiting: u32,
    pub grammar: u32,
    pub paused: u32,
    pub retracted: u32,
}
