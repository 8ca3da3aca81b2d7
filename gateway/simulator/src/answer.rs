//! One generation: its messages, when they are due, and how it ends.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use smg_engine_client::proto::scheduler::generate_complete::MatchedStop;
use smg_engine_client::proto::scheduler::generate_response::Response as Payload;
use smg_engine_client::proto::scheduler::{
    GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk,
};
use smg_engine_client::{CachedTiers, Matched, StageTimes, proto::scheduler as wire};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::engine::Inner;
use crate::logprobs;
use crate::script::{AnswerPlan, Outcome, Script, Style, status};

/// A generation that is running. Dropped before `end`, it counts as cancelled.
pub(crate) struct Live {
    engine: Arc<Inner>,
    key: u64,
    request_id: String,
    aborted: CancellationToken,
    ended: bool,
}

impl Live {
    pub fn new(engine: Arc<Inner>, request_id: String) -> Self {
        let aborted = CancellationToken::new();
        let key = engine.begin(&request_id, aborted.clone());
        Self {
            engine,
            key,
            request_id,
            aborted,
            ended: false,
        }
    }

    pub fn end(&mut self) {
        if !std::mem::replace(&mut self.ended, true) {
            self.engine
                .recorder
                .note(|c| c.ended += 1, |r| r.ended.push(self.request_id.clone()));
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.engine.leave(self.key);
        if !self.ended {
            let request_id = std::mem::take(&mut self.request_id);
            self.engine
                .recorder
                .note(|c| c.cancelled += 1, |r| r.cancelled.push(request_id));
        }
    }
}

/// The state of a running generation.
pub(crate) struct Generation {
    request: GenerateRequest,
    script: Script,
    plan: AnswerPlan,
    live: Live,
    /// When the first token is due.
    first_due: Instant,
    num_answers: u32,
    /// Tokens of each answer that are out already.
    position: usize,
    /// The answer whose message comes next; all get theirs before the position moves.
    answer: u32,
    messages_sent: usize,
    phase: Phase,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Tokens,
    /// Complete messages remain.
    Ending {
        aborted: bool,
    },
    Over,
}

impl Generation {
    pub fn new(request: GenerateRequest, script: Script, live: Live) -> Self {
        Self {
            plan: AnswerPlan::new(&script, &request),
            first_due: Instant::now() + script.first_token_delay,
            num_answers: request
                .sampling_params
                .as_ref()
                .map_or(1, |sampling| sampling.n.max(1)),
            request,
            script,
            live,
            position: 0,
            answer: 0,
            messages_sent: 0,
            phase: Phase::Tokens,
        }
    }

    /// Waits for what precedes the headers.
    pub async fn start(&mut self) -> Result<(), Status> {
        match &self.script.outcome {
            Outcome::Refuse { code, message } => {
                let refusal = status(*code, message);
                self.live.end();
                Err(refusal)
            }
            Outcome::HangBeforeHeaders => {
                self.hang().await;
                Ok(())
            }
            Outcome::HangAfter { messages: 0 } => Ok(()),
            _ => {
                self.wait_for(self.first_due).await;
                Ok(())
            }
        }
    }

    pub fn into_messages(self) -> impl Stream<Item = Result<GenerateResponse, Status>> + Send + 'static {
        futures::stream::unfold(self, |mut generation| async move {
            let message = generation.next().await?;
            Some((message, generation))
        })
    }

    async fn next(&mut self) -> Option<Result<GenerateResponse, Status>> {
        loop {
            match self.phase {
                Phase::Over => return None,
                Phase::Ending { aborted } => return Some(Ok(self.next_complete(aborted))),
                Phase::Tokens if self.tripped() => {
                    if let Some(failure) = self.trip().await {
                        return Some(Err(failure));
                    }
                }
                Phase::Tokens if self.position >= self.plan.len() => {
                    self.phase = Phase::Ending { aborted: false };
                }
                Phase::Tokens => {
                    let end = self.message_end();
                    if self.answer == 0 && self.wait_for(self.due(end)).await {
                        continue;
                    }
                    if self.sends_chunks() {
                        return Some(Ok(self.next_chunk(end)));
                    }
                    self.position = end;
                }
            }
        }
    }

    /// Waits, unless the request is aborted meanwhile: then the generation is about to end.
    async fn wait_for(&mut self, due: Instant) -> bool {
        let aborts = self.script.heeds_aborts;
        let mut aborted = aborts && self.live.aborted.is_cancelled();
        if !aborted && Instant::now() < due {
            tokio::select! {
                () = tokio::time::sleep_until(due) => {}
                () = self.live.aborted.cancelled(), if aborts => aborted = true,
            }
        }
        if aborted {
            (self.phase, self.answer) = (Phase::Ending { aborted: true }, 0);
        }
        aborted
    }

    async fn hang(&mut self) {
        if !self.script.heeds_aborts {
            std::future::pending::<()>().await;
        }
        self.live.aborted.cancelled().await;
        (self.phase, self.answer) = (Phase::Ending { aborted: true }, 0);
    }

    fn tripped(&self) -> bool {
        self.script
            .outcome
            .trips_after()
            .is_some_and(|messages| self.messages_sent >= messages)
    }

    /// Does what the outcome says instead of a regular end.
    async fn trip(&mut self) -> Option<Status> {
        if matches!(self.script.outcome, Outcome::HangAfter { .. }) {
            self.hang().await;
            return None;
        }
        if matches!(self.script.outcome, Outcome::AbortAfter { .. }) {
            (self.phase, self.answer) = (Phase::Ending { aborted: true }, 0);
            return None;
        }
        self.phase = Phase::Over;
        self.live.end();
        match &self.script.outcome {
            Outcome::FailAfter { code, message, .. } => Some(status(*code, message)),
            _ => None,
        }
    }

    fn sends_chunks(&self) -> bool {
        self.request.stream && self.script.style != Style::WholeOnly
    }

    fn message_end(&self) -> usize {
        if self.sends_chunks() {
            (self.position + self.script.tokens_per_message.max(1)).min(self.plan.len())
        } else {
            self.plan.len()
        }
    }

    /// When the message that ends before token `end` is due: with its last token.
    fn due(&self, end: usize) -> Instant {
        let steps = u32::try_from(end.saturating_sub(1)).unwrap_or(u32::MAX);
        if self.script.token_delay == Duration::ZERO {
            return self.first_due;
        }
        self.first_due + self.script.token_delay.saturating_mul(steps)
    }

    fn prompt_tokens(&self) -> u32 {
        self.request
            .tokenized
            .as_ref()
            .map_or(0, |tokenized| tokenized.input_ids.len() as u32)
    }

    fn next_chunk(&mut self, end: usize) -> GenerateResponse {
        let token_ids = self.plan.range(self.position, end);
        let mut chunk = GenerateStreamChunk {
            index: self.answer,
            ..GenerateStreamChunk::default()
        };
        if self.script.style == Style::Native {
            chunk.prompt_tokens = self.prompt_tokens();
            chunk.completion_tokens = end as u32;
            chunk.cached_tokens = self.script.cached_tokens;
            if self.position == 0 {
                chunk.cached_tokens_details = self.script.cached_tiers.map(details);
                chunk.times = self.script.times.map(times);
            }
            if self.request.return_logprob {
                chunk.output_logprobs = Some(logprobs::output_rows(&self.request, &token_ids));
                chunk.input_logprobs = if self.position == 0 {
                    logprobs::input_rows(&self.request)
                } else {
                    None
                };
            }
        }
        chunk.token_ids = token_ids;
        self.messages_sent += 1;
        self.answer += 1;
        if self.answer == self.num_answers {
            (self.answer, self.position) = (0, end);
        }
        self.respond(Payload::Chunk(chunk))
    }

    fn next_complete(&mut self, aborted: bool) -> GenerateResponse {
        let output_ids = self.plan.range(0, self.position);
        let bare = self.script.style == Style::Bare;
        let mut complete = GenerateComplete {
            index: self.answer,
            finish_reason: if aborted { "abort" } else { self.plan.finish_reason }.to_owned(),
            prompt_tokens: self.prompt_tokens(),
            completion_tokens: self.position as u32,
            cached_tokens: self.script.cached_tokens,
            cached_tokens_details: self.script.cached_tiers.map(details),
            times: self.script.times.map(times),
            ..GenerateComplete::default()
        };
        if aborted {
            let (message, status) = self.abortion();
            complete.abort_message = message;
            complete.abort_status_code = status;
        } else {
            complete.matched_stop = self.plan.matched_stop.clone().map(|matched| match matched {
                Matched::Token(id) => MatchedStop::MatchedTokenId(id),
                Matched::Text(text) => MatchedStop::MatchedStopStr(text),
            });
        }
        if !self.sends_chunks() && self.request.return_logprob {
            complete.output_logprobs = Some(logprobs::output_rows(&self.request, &output_ids));
            complete.input_logprobs = logprobs::input_rows(&self.request);
        }
        if !bare {
            complete.output_ids = output_ids;
        }
        self.answer += 1;
        if self.answer == self.num_answers {
            self.phase = Phase::Over;
            self.live.end();
        }
        self.respond(Payload::Complete(complete))
    }

    /// Why the answer is aborted, and the HTTP status that fits it; 0: none.
    fn abortion(&self) -> (String, u32) {
        match &self.script.outcome {
            Outcome::AbortAfter { status, message, .. } if !self.live.aborted.is_cancelled() => {
                (message.clone(), u32::from(*status))
            }
            _ => ("aborted by request".to_owned(), 0),
        }
    }

    fn respond(&self, payload: Payload) -> GenerateResponse {
        GenerateResponse {
            request_id: self.request.request_id.clone(),
            response: Some(payload),
        }
    }
}

fn details(tiers: CachedTiers) -> wire::CachedTokensDetails {
    wire::CachedTokensDetails {
        device: tiers.device,
        host: tiers.host,
        storage: tiers.storage,
    }
}

fn times(times: StageTimes) -> wire::StageTimes {
    wire::StageTimes {
        received: times.received,
        compiled: times.compiled,
        admitted: times.admitted,
        prefilled: times.prefilled,
    }
}
