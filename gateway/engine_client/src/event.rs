//! What a generation answers with.

/// One step of a generation. With `n` answers, events of different indices interleave.
#[derive(Debug, Clone, PartialEq)]
pub enum EngineEvent {
    Tokens(TokenChunk),
    /// The end of one answer; nothing follows for its index.
    Complete(Completion),
}

/// New tokens of one answer. Together, an index's chunks carry each of its tokens and logprob rows once.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenChunk {
    pub index: u32,
    /// Only the new ones; empty in a chunk that brings input logprobs alone.
    pub token_ids: Vec<u32>,
    pub prompt_tokens: u32,
    /// So far; 0 where the worker does not count.
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    /// A row per new token.
    pub output_logprobs: Option<LogprobRows>,
    /// A row per reported prompt token; at most once per answer.
    pub input_logprobs: Option<LogprobRows>,
    /// Where `cached_tokens` came from; in an answer's first chunk, where the worker tells.
    pub cached_tiers: Option<CachedTiers>,
    /// As far as they have passed; in an answer's first chunk, where the worker measures.
    pub times: Option<StageTimes>,
}

/// Prompt tokens by the tier of the cache that held them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedTiers {
    pub device: u32,
    pub host: u32,
    pub storage: u32,
}

/// When a request passed its stages, in seconds since the epoch by the worker's clock. `None`: not reached.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct StageTimes {
    /// By the scheduler.
    pub received: f64,
    /// Its grammar is there; `None` where it has none to wait for.
    pub compiled: Option<f64>,
    /// To a batch, for the first time.
    pub admitted: Option<f64>,
    /// The whole prompt is computed.
    pub prefilled: Option<f64>,
}

/// How one answer ended, and its totals.
#[derive(Debug, Clone, PartialEq)]
pub struct Completion {
    pub index: u32,
    pub finish: Finish,
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub cached_tokens: u32,
    pub reasoning_tokens: u32,
    pub num_retractions: u32,
    pub spec_accepted_tokens: u32,
    pub spec_draft_tokens: u32,
    /// All tokens of the answer, as the worker reported them; empty where it reports them in chunks only.
    pub output_ids: Vec<u32>,
    /// Where `cached_tokens` came from, where the worker tells.
    pub cached_tiers: Option<CachedTiers>,
    /// Where the worker measures.
    pub times: Option<StageTimes>,
}

/// Why an answer ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finish {
    pub reason: FinishReason,
    /// What stopped it, with `FinishReason::Stop`.
    pub matched: Option<Matched>,
    /// What went wrong, with `FinishReason::Abort`.
    pub message: Option<String>,
    /// The HTTP status that fits `message`.
    pub status_code: Option<u16>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FinishReason {
    Stop,
    Length,
    Abort,
}

/// The stop condition that was met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Matched {
    Token(u32),
    Text(String),
}

/// Log probabilities, a row per token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LogprobRows {
    /// Unset for the first token of a prompt, which nothing predicts.
    pub logprobs: Vec<Option<f32>>,
    pub token_ids: Vec<u32>,
    /// The likeliest tokens with their log probabilities; empty when none were asked for.
    pub top: Vec<Vec<(u32, f32)>>,
    /// The tokens of `token_ids_logprob`; empty when none were asked for.
    pub chosen: Vec<Vec<(u32, f32)>>,
}

impl LogprobRows {
    /// The rows from `start` on.
    #[must_use]
    pub(crate) fn tail(mut self, start: usize) -> Self {
        Self {
            logprobs: split(&mut self.logprobs, start),
            token_ids: split(&mut self.token_ids, start),
            top: split(&mut self.top, start),
            chosen: split(&mut self.chosen, start),
        }
    }
}

fn split<T>(rows: &mut Vec<T>, start: usize) -> Vec<T> {
    rows.split_off(start.min(rows.len()))
}
