//! What an endpoint wants from the pipeline, and what comes back, free of any endpoint's JSON.

use std::sync::Arc;

use bytes::BytesMut;
use serde::Serialize;
use serde_json::Value;
use smg_api::{FinishReason, MatchedStop, Routing, Sampling, TemplateOptions};
use smg_engine_client::{CachedTiers, LogprobRows, StageTimes};
use smg_tokenizer::Tokenizer;
use tokio::time::Instant;

use crate::{error::Failure, layers::body::BodySpace, spans::Span};

/// One request for generation: the common form of all endpoints.
pub struct GenerateCall {
    /// The id that the client sees.
    pub id: Arc<str>,
    pub endpoint: &'static str,
    /// `None`: the only model there is.
    pub model: Option<String>,
    pub stream: bool,
    /// One entry per prompt, never empty; all have the same `n`.
    pub prompts: Vec<PromptCall>,
    pub render: Box<dyn Render>,
    /// Request metadata for the worker.
    pub trace: Vec<(String, String)>,
    pub span: Span,
    pub arrived: Instant,
    /// What the prompts take until they are tokenized; its length tells how much work their text may be.
    pub body: Arc<BodySpace>,
}

/// One prompt of a call.
pub struct PromptCall {
    pub id: CallId,
    pub input: Input,
    pub sampling: Sampling,
    pub logprobs: Option<LogprobWish>,
    /// Put the prompt before the answer.
    pub echo: bool,
    /// Its rank, keys and session. The ids in it have become `id`.
    pub routing: Routing,
}

/// The id by which a prompt's generation is known to the worker and to `/abort_request`.
#[derive(Clone)]
pub struct CallId {
    pub value: String,
    /// The client chose it for this purpose (`rid`): it may not repeat, and the worker gets it as it is.
    pub is_rid: bool,
    /// What the client calls it together with others: the `rid` of a batch.
    pub group: Option<String>,
}

/// What the model continues.
pub enum Input {
    Chat {
        messages: Value,
        template: TemplateOptions,
    },
    /// `field` is what the endpoint calls it, here and below.
    Text {
        text: String,
        field: &'static str,
    },
    Ids {
        ids: Vec<u32>,
        field: &'static str,
    },
}

/// Which log probabilities are wanted.
#[derive(Clone)]
pub struct LogprobWish {
    /// First prompt position to report; -1 = those of the answer only.
    pub start_len: i32,
    pub top: u32,
    /// What the endpoint calls `top`.
    pub field: &'static str,
    pub token_ids: Vec<u32>,
}

/// Facts of a call that its rendering needs.
pub struct Head {
    pub id: Arc<str>,
    pub model: Arc<str>,
    pub weight_version: String,
    pub tokenizer: Tokenizer,
    /// Seconds since the epoch.
    pub created: u64,
    /// When the request arrived.
    pub started: Instant,
    /// Ends with the answer.
    pub span: Span,
    /// Answers per prompt.
    pub n: usize,
    pub prompts: Vec<PromptHead>,
}

/// Facts of one prompt that the rendering needs.
pub struct PromptHead {
    pub id: String,
    pub num_tokens: u32,
    /// The prompt's text, where it is to be repeated.
    pub echo: Option<String>,
}

/// News of one answer.
#[derive(Default)]
pub struct TextDelta {
    pub prompt: usize,
    pub sample: usize,
    /// New text that can no longer change.
    pub text: String,
    /// New tokens, those of a matched stop included.
    pub token_ids: Vec<u32>,
    /// A row per new token.
    pub logprobs: Option<LogprobRows>,
    /// Once per answer.
    pub prompt_logprobs: Option<Arc<LogprobRows>>,
    pub counts: Counts,
    pub end: Option<End>,
}

/// Tokens of one answer so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub prompt: u32,
    pub completion: u32,
    pub cached: u32,
    /// Where `cached` came from, where the worker tells.
    pub tiers: Option<CachedTiers>,
}

/// How an answer ended.
#[derive(Clone, Debug, PartialEq)]
pub struct End {
    pub reason: FinishReason,
    pub matched: Option<MatchedStop>,
    /// Why, with `FinishReason::Abort`.
    pub message: Option<String>,
    pub num_retractions: u32,
    /// Where the worker measures.
    pub timing: Option<Timing>,
}

/// When an answer passed its stages: in the worker by its clock, here by ours.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    pub stages: StageTimes,
    /// `None`: there was no token.
    pub first_token: Option<Instant>,
    pub ended: Instant,
}

/// All news of one answer together.
#[derive(Default)]
pub struct Answer {
    pub prompt: usize,
    pub sample: usize,
    pub text: String,
    pub token_ids: Vec<u32>,
    pub logprobs: Option<LogprobRows>,
    pub prompt_logprobs: Option<Arc<LogprobRows>>,
    pub counts: Counts,
    pub end: Option<End>,
}

/// Writes one endpoint's answers.
pub trait Render: Send {
    /// Writes the events that tell this news. After a failure nothing follows: the answer is none that was asked for.
    fn delta(&mut self, head: &Head, delta: TextDelta, events: &mut Events) -> Result<(), Failure>;

    /// Called once after all answers ended well; writes what is said of all of them.
    fn end(&mut self, head: &Head, events: &mut Events);

    /// The whole answer as a JSON body. `answers` are complete and in the order prompt, sample.
    fn whole(&mut self, head: &Head, answers: Vec<Answer>) -> Result<Vec<u8>, Failure>;
}

/// Server-sent events on their way to the client.
#[derive(Default)]
pub struct Events(pub BytesMut);

// === impl Input ===

impl Input {
    /// The request field that holds it.
    pub fn field(&self) -> &'static str {
        match self {
            Self::Chat { .. } => "messages",
            Self::Text { field, .. } | Self::Ids { field, .. } => field,
        }
    }
}

// === impl Head ===

impl Head {
    /// The position of an answer among all answers of the call.
    pub fn index(&self, prompt: usize, sample: usize) -> usize {
        prompt * self.n + sample
    }

    pub fn num_answers(&self) -> usize {
        self.prompts.len() * self.n
    }
}

// === impl Answer ===

impl Answer {
    /// Empty answers for every prompt and sample, in order.
    pub fn all_of(head: &Head) -> Vec<Self> {
        let positions =
            (0..head.prompts.len()).flat_map(|prompt| (0..head.n).map(move |sample| (prompt, sample)));
        positions
            .map(|(prompt, sample)| Self {
                prompt,
                sample,
                ..Self::default()
            })
            .collect()
    }

    pub fn absorb(&mut self, delta: TextDelta) {
        self.text.push_str(&delta.text);
        self.token_ids.extend_from_slice(&delta.token_ids);
        match (&mut self.logprobs, delta.logprobs) {
            (Some(rows), Some(more)) => append(rows, more),
            (rows @ None, more) => *rows = more,
            (Some(_), None) => {}
        }
        if delta.prompt_logprobs.is_some() {
            self.prompt_logprobs = delta.prompt_logprobs;
        }
        self.counts = delta.counts;
        self.end = delta.end.or(self.end.take());
    }

    /// The same as one piece of news.
    pub fn into_delta(self) -> TextDelta {
        TextDelta {
            prompt: self.prompt,
            sample: self.sample,
            text: self.text,
            token_ids: self.token_ids,
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            counts: self.counts,
            end: self.end,
        }
    }

    /// The reason of the end; an answer that was never ended counts as aborted.
    pub fn reason(&self) -> FinishReason {
        self.end.as_ref().map_or(FinishReason::Abort, |end| end.reason)
    }

    pub fn matched(&self) -> Option<MatchedStop> {
        self.end.as_ref().and_then(|end| end.matched.clone())
    }
}

fn append(rows: &mut LogprobRows, more: LogprobRows) {
    rows.logprobs.extend(more.logprobs);
    rows.token_ids.extend(more.token_ids);
    rows.top.extend(more.top);
    rows.chosen.extend(more.chosen);
}

// === impl Events ===

impl Events {
    /// Appends one event with a JSON payload.
    pub fn json(&mut self, payload: &impl Serialize) {
        use bytes::BufMut;
        let start = self.0.len();
        self.0.extend_from_slice(b"data: ");
        match serde_json::to_writer((&mut self.0).writer(), payload) {
            Ok(()) => self.0.extend_from_slice(b"\n\n"),
            // Our own types serialize; a half-written event must not reach the client in any case.
            Err(error) => {
                tracing::error!(%error, "an event cannot be written");
                self.0.truncate(start);
            }
        }
    }

    pub fn raw(&mut self, event: &str) {
        self.0.extend_from_slice(event.as_bytes());
    }

    pub fn done(&mut self) {
        self.0.extend_from_slice(b"data: [DONE]\n\n");
    }
}
