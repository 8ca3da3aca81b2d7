//! `POST /generate`, the native endpoint.

use std::{sync::Arc, time::SystemTime};

use axum::{
    extract::{Request, State},
    response::Response,
};
use smg_api::{
    FinishReason, GenerateFinish, GenerateRequest, GenerateResponse, LogprobTriple, MetaInfo, Prompt, Timings,
};
use smg_engine_client::LogprobRows;
use smg_tokenizer::Tokenizer;
use tokio::time::Instant;

use super::{
    Incoming,
    usage::{details, token_text},
};
use crate::{
    context::Context,
    error::Failure,
    pipeline::{
        self, Answer, End, Events, GenerateCall, Head, Input, LogprobWish, PromptCall, Render, TextDelta,
        Timing,
    },
};

pub async fn handle(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    // Documented commands post JSON without declaring it.
    let incoming = Incoming::any(request)?;
    pipeline::run(&cx, parse(incoming)?).await
}

pub fn parse(incoming: Incoming) -> Result<GenerateCall, Failure> {
    let request = GenerateRequest::parse(&incoming.body)?;
    let mut prompts = Vec::with_capacity(request.items.len());
    for item in request.items {
        let (id, routing) = incoming.place(item.routing)?;
        prompts.push(PromptCall {
            id,
            input: match item.prompt {
                Prompt::Text(text) => Input::Text { text, field: "text" },
                Prompt::Ids(ids) => Input::Ids {
                    ids,
                    field: "input_ids",
                },
            },
            sampling: item.sampling,
            logprobs: item.logprobs.map(|wish| LogprobWish {
                start_len: wish.start_len,
                top: wish.top_num,
                field: "top_logprobs_num",
                token_ids: wish.token_ids,
            }),
            echo: false,
            routing,
        });
    }
    let n = prompts.first().map_or(1, |prompt| prompt.sampling.n);
    let render = NativeRender {
        as_list: request.is_batch || n > 1,
        with_text: request.return_text_in_logprobs,
        wishes: prompts.iter().map(|prompt| prompt.logprobs.clone()).collect(),
        answers: Vec::new(),
    };
    Ok(GenerateCall {
        id: incoming.id.0.clone(),
        endpoint: "generate",
        model: request.model,
        stream: request.stream,
        prompts,
        render: Box::new(render),
        trace: incoming.trace(),
        span: incoming.span,
        arrived: incoming.arrived,
        body: incoming.space,
    })
}

/// Writes native answers. Events are cumulative: each holds the whole answer so far. The logprobs of the prompt, which
/// would make a stream as long as the prompt times the answer, are told when they come and at the end.
struct NativeRender {
    as_list: bool,
    with_text: bool,
    /// Per prompt.
    wishes: Vec<Option<LogprobWish>>,
    answers: Vec<GenerateResponse>,
}

// === impl NativeRender ===

impl NativeRender {
    /// Adds news to an answer and returns it.
    fn absorb(&mut self, head: &Head, delta: TextDelta) -> &GenerateResponse {
        if self.answers.is_empty() {
            self.answers = (0..head.num_answers())
                .map(|index| self.empty(head, index))
                .collect();
        }
        let index = head.index(delta.prompt, delta.sample);
        let wish = self.wishes.get(delta.prompt).and_then(Option::as_ref);
        let answer = &mut self.answers[index];
        answer.text.push_str(&delta.text);
        answer.output_ids.extend_from_slice(&delta.token_ids);
        let info = &mut answer.meta_info;
        info.prompt_tokens = delta.counts.prompt;
        info.completion_tokens = delta.counts.completion;
        info.cached_tokens = delta.counts.cached;
        info.cached_tokens_details = delta.counts.tiers.map(details);
        if let Some(wish) = wish {
            let triples = Triples {
                tokenizer: &head.tokenizer,
                with_text: self.with_text,
                wish,
            };
            triples.add_output(info, delta.logprobs.as_ref());
            triples.add_input(info, delta.prompt_logprobs.as_deref());
        }
        if let Some(end) = delta.end {
            info.num_retractions = end.num_retractions;
            info.e2e_latency = Some(head.started.elapsed().as_secs_f64());
            info.timings = end
                .timing
                .map(|timing| timings(head.started, timing, info.completion_tokens));
            info.finish_reason = Some(finish(end, info.completion_tokens));
        }
        answer
    }

    fn empty(&self, head: &Head, index: usize) -> GenerateResponse {
        let prompt = &head.prompts[index / head.n];
        GenerateResponse {
            text: String::new(),
            output_ids: Vec::new(),
            meta_info: MetaInfo {
                id: prompt.id.clone(),
                weight_version: head.weight_version.clone(),
                ..MetaInfo::default()
            },
            index: None,
        }
    }
}

/// The logprob lists of a prompt, out of an answer.
struct PromptLists {
    tokens: Option<Vec<LogprobTriple>>,
    top: Option<Vec<Option<Vec<LogprobTriple>>>>,
    chosen: Option<Vec<Option<Vec<LogprobTriple>>>>,
}

impl PromptLists {
    /// Empty ones for those that the answer has: clients look for the keys in every event.
    fn empty(info: &MetaInfo) -> Self {
        Self {
            tokens: info.input_token_logprobs.as_ref().map(|_| Vec::new()),
            top: info.input_top_logprobs.as_ref().map(|_| Vec::new()),
            chosen: info.input_token_ids_logprobs.as_ref().map(|_| Vec::new()),
        }
    }

    fn swap(&mut self, info: &mut MetaInfo) {
        std::mem::swap(&mut self.tokens, &mut info.input_token_logprobs);
        std::mem::swap(&mut self.top, &mut info.input_top_logprobs);
        std::mem::swap(&mut self.chosen, &mut info.input_token_ids_logprobs);
    }
}

impl Render for NativeRender {
    fn delta(&mut self, head: &Head, delta: TextDelta, events: &mut Events) -> Result<(), Failure> {
        let index = head.index(delta.prompt, delta.sample);
        let tells_prompt = delta.prompt_logprobs.is_some() || delta.end.is_some();
        self.absorb(head, delta);
        let answer = &mut self.answers[index];
        answer.index = self.as_list.then_some(index);
        if tells_prompt {
            events.json(answer);
            return Ok(());
        }
        let mut lists = PromptLists::empty(&answer.meta_info);
        lists.swap(&mut answer.meta_info);
        events.json(answer);
        lists.swap(&mut answer.meta_info);
        Ok(())
    }

    fn end(&mut self, _head: &Head, _events: &mut Events) {}

    fn whole(&mut self, head: &Head, answers: Vec<Answer>) -> Result<Vec<u8>, Failure> {
        for answer in answers {
            self.absorb(head, answer.into_delta());
        }
        Ok(match self.answers.as_slice() {
            [one] if !self.as_list => serde_json::to_vec(one),
            all => serde_json::to_vec(all),
        }?)
    }
}

fn timings(started: Instant, timing: Timing, completion_tokens: u32) -> Timings {
    let Timing {
        stages,
        first_token,
        ended,
    } = timing;
    let queued = stages.compiled.unwrap_or(stages.received);
    let now = unix_time();
    let decoded = first_token.map(|first| (ended - first).as_secs_f64());
    Timings {
        request_received_ts: now - started.elapsed().as_secs_f64(),
        queue_time: stages.admitted.map(|admitted| (admitted - queued).max(0.0)),
        forward_entry_time: stages.admitted,
        prefill_finished_time: stages.prefilled,
        first_token_latency: first_token.map(|first| (first - started).as_secs_f64()),
        decode_throughput: decoded
            .filter(|seconds| *seconds > 0.0 && completion_tokens > 1)
            .map(|seconds| f64::from(completion_tokens - 1) / seconds),
        response_sent_to_client_ts: now,
    }
}

fn unix_time() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |age| age.as_secs_f64())
}

fn finish(end: End, completion_tokens: u32) -> GenerateFinish {
    match end.reason {
        FinishReason::Stop | FinishReason::ToolCalls => GenerateFinish::Stop { matched: end.matched },
        FinishReason::Length => GenerateFinish::Length {
            length: completion_tokens,
        },
        FinishReason::Abort => GenerateFinish::Abort {
            message: end.message.unwrap_or_default(),
            status_code: None,
            err_type: None,
        },
    }
}

/// Tokens at one position with their logprobs.
type Alternatives = Vec<(u32, f32)>;

/// Turns rows into `[logprob, id, text]`.
struct Triples<'a> {
    tokenizer: &'a Tokenizer,
    with_text: bool,
    wish: &'a LogprobWish,
}

impl Triples<'_> {
    fn add_output(&self, info: &mut MetaInfo, rows: Option<&LogprobRows>) {
        let list = info.output_token_logprobs.get_or_insert_default();
        self.add_tokens(rows, list);
        info.output_token_logprobs_length = Some(list.len());
        if self.wish.top > 0 {
            self.add_rows(
                rows,
                |rows| &rows.top,
                info.output_top_logprobs.get_or_insert_default(),
            );
        }
        if !self.wish.token_ids.is_empty() {
            self.add_rows(
                rows,
                |rows| &rows.chosen,
                info.output_token_ids_logprobs.get_or_insert_default(),
            );
        }
    }

    fn add_input(&self, info: &mut MetaInfo, rows: Option<&LogprobRows>) {
        self.add_tokens(rows, info.input_token_logprobs.get_or_insert_default());
        if self.wish.top > 0 {
            self.add_rows(
                rows,
                |rows| &rows.top,
                info.input_top_logprobs.get_or_insert_default(),
            );
        }
        if !self.wish.token_ids.is_empty() {
            self.add_rows(
                rows,
                |rows| &rows.chosen,
                info.input_token_ids_logprobs.get_or_insert_default(),
            );
        }
    }

    fn add_tokens(&self, rows: Option<&LogprobRows>, out: &mut Vec<LogprobTriple>) {
        let Some(rows) = rows else { return };
        out.extend(
            rows.token_ids
                .iter()
                .zip(&rows.logprobs)
                .map(|(&id, &logprob)| self.triple(id, logprob)),
        );
    }

    fn add_rows(
        &self,
        rows: Option<&LogprobRows>,
        column: fn(&LogprobRows) -> &[Alternatives],
        out: &mut Vec<Option<Vec<LogprobTriple>>>,
    ) {
        let Some(rows) = rows else { return };
        for position in 0..rows.token_ids.len() {
            let row = column(rows).get(position).filter(|row| !row.is_empty());
            out.push(row.map(|row| {
                row.iter()
                    .map(|&(id, logprob)| self.triple(id, Some(logprob)))
                    .collect()
            }));
        }
    }

    fn triple(&self, token_id: u32, logprob: Option<f32>) -> LogprobTriple {
        let text = self.with_text.then(|| token_text(self.tokenizer, token_id).0);
        LogprobTriple {
            logprob,
            token_id,
            text,
        }
    }
}
