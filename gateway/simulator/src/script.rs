//! What the engine is told to do.

use std::time::Duration;

use smg_engine_client::proto::scheduler::GenerateRequest;
use smg_engine_client::{CachedTiers, Matched, StageTimes};
use tonic::{Code, Status};

/// How one generation goes. The default echoes the prompt, a token per message, without any delay.
#[derive(Debug, Clone)]
pub struct Script {
    pub tokens: Tokens,
    /// At least 1.
    pub tokens_per_message: usize,
    /// From the request to the first token. Headers leave with the first message.
    pub first_token_delay: Duration,
    /// Between tokens. Late messages are made up for: the schedule counts from the first token.
    pub token_delay: Duration,
    pub outcome: Outcome,
    /// What a natural end reports as its stop condition.
    pub matched_stop: Option<Matched>,
    /// Reported share of the prompt that was cached, in tokens.
    pub cached_tokens: u32,
    /// Where they came from; `None`: not told.
    pub cached_tiers: Option<CachedTiers>,
    /// `None`: not measured.
    pub times: Option<StageTimes>,
    pub style: Style,
    /// Whether Abort ends the generation; the end of the rpc always does.
    pub heeds_aborts: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            tokens: Tokens::Echo,
            tokens_per_message: 1,
            first_token_delay: Duration::ZERO,
            token_delay: Duration::ZERO,
            outcome: Outcome::Complete,
            matched_stop: None,
            cached_tokens: 0,
            cached_tiers: None,
            times: None,
            style: Style::Native,
            heeds_aborts: true,
        }
    }
}

impl Script {
    /// Emits exactly these tokens.
    pub fn fixed(ids: impl Into<Vec<u32>>) -> Self {
        Self {
            tokens: Tokens::Fixed(ids.into()),
            ..Self::default()
        }
    }

    /// Echoes the prompt and ends in `outcome`.
    pub fn ending(outcome: Outcome) -> Self {
        Self {
            outcome,
            ..Self::default()
        }
    }

    /// Refuses the request before its headers.
    pub fn refusing(code: Code, message: impl Into<String>) -> Self {
        Self::ending(Outcome::Refuse {
            code,
            message: message.into(),
        })
    }
}

/// The tokens of an answer. `max_new_tokens` and `stop_token_ids` of the request cut them short.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tokens {
    Fixed(Vec<u32>),
    /// The prompt.
    Echo,
    /// `count` tokens: `ids` over and over, or the prompt where `ids` is empty.
    Cycle {
        ids: Vec<u32>,
        count: usize,
    },
}

/// How a generation ends. Messages are counted over all answers of the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Complete,
    /// A status instead of headers.
    Refuse {
        code: Code,
        message: String,
    },
    /// A status after some chunks.
    FailAfter {
        messages: usize,
        code: Code,
        message: String,
    },
    /// An answer that the engine ends itself, with an HTTP status, after some chunks.
    AbortAfter {
        messages: usize,
        status: u16,
        message: String,
    },
    /// Silence instead of headers, until the rpc is cancelled or the request aborted.
    HangBeforeHeaders,
    /// Silence after some chunks; with 0, right after the headers.
    HangAfter {
        messages: usize,
    },
    /// An end without a complete message, after some chunks.
    EndAfter {
        messages: usize,
    },
}

impl Outcome {
    /// The number of chunks after which something other than the regular end happens.
    pub(crate) fn trips_after(&self) -> Option<usize> {
        match self {
            Self::FailAfter { messages, .. }
            | Self::AbortAfter { messages, .. }
            | Self::HangAfter { messages }
            | Self::EndAfter { messages } => Some(*messages),
            Self::Complete | Self::Refuse { .. } | Self::HangBeforeHeaders => None,
        }
    }
}

/// What the messages carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    /// As our own engine: counts and log probabilities in every chunk, all ids in `complete`.
    Native,
    /// Chunks with nothing but ids, `complete` with nothing but its counts.
    Bare,
    /// No chunks although a stream was asked for: everything is in `complete`.
    WholeOnly,
}

/// What a health probe gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HealthScript {
    Ready,
    /// UNAVAILABLE, as while loading or draining.
    NotReady(String),
    /// OK with `healthy` = false.
    Unhealthy(String),
    /// Ready, after a while.
    Slow(Duration),
    /// No answer at all.
    Silent,
}

/// Chooses the script of each request.
pub(crate) type ScriptSource = Box<dyn Fn(&GenerateRequest) -> Script + Send + Sync>;

/// The tokens of one answer after the request's limits, and how it ends.
#[derive(Debug, Clone)]
pub(crate) struct AnswerPlan {
    ids: Vec<u32>,
    len: usize,
    pub finish_reason: &'static str,
    pub matched_stop: Option<Matched>,
}

impl AnswerPlan {
    pub fn new(script: &Script, request: &GenerateRequest) -> Self {
        let prompt = || {
            request
                .tokenized
                .as_ref()
                .map(|t| t.input_ids.clone())
                .unwrap_or_default()
        };
        let (ids, len) = match &script.tokens {
            Tokens::Fixed(ids) => (ids.clone(), ids.len()),
            Tokens::Echo => {
                let ids = prompt();
                let len = ids.len();
                (ids, len)
            }
            Tokens::Cycle { ids, count } if ids.is_empty() => (prompt(), *count),
            Tokens::Cycle { ids, count } => (ids.clone(), *count),
        };
        let len = if ids.is_empty() { 0 } else { len };
        let mut plan = Self {
            ids,
            len,
            finish_reason: "stop",
            matched_stop: script.matched_stop.clone(),
        };
        plan.apply_limits(request);
        plan
    }

    fn apply_limits(&mut self, request: &GenerateRequest) {
        let Some(sampling) = &request.sampling_params else {
            return;
        };
        let limit = sampling.max_new_tokens.map_or(usize::MAX, |limit| limit as usize);
        if limit < self.len {
            (self.len, self.finish_reason, self.matched_stop) = (limit, "length", None);
        }
        if sampling.stop_token_ids.is_empty() {
            return;
        }
        if let Some(position) = (0..self.len).find(|i| sampling.stop_token_ids.contains(&self.token(*i))) {
            self.matched_stop = Some(Matched::Token(self.token(position)));
            (self.len, self.finish_reason) = (position + 1, "stop");
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// `start..end` must lie within the answer.
    pub fn range(&self, start: usize, end: usize) -> Vec<u32> {
        (start..end).map(|position| self.token(position)).collect()
    }

    fn token(&self, position: usize) -> u32 {
        self.ids[position % self.ids.len()]
    }
}

pub(crate) fn status(code: Code, message: &str) -> Status {
    Status::new(code, message)
}
