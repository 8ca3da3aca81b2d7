//! Runs each prompt on its worker: retries before the first event, deadlines, and an end on every exit.

use std::{collections::VecDeque, pin::Pin, sync::Arc, time::Duration};

use futures::{Stream, StreamExt};
use smg_api::ApiError;
use smg_engine_client::{
    Completion, EngineError, EngineEvent, Finish, FinishReason, GenerateSpec, GenerateStream, StatusClass,
};
use smg_routing::{Outcome, WorkerId};
use tokio::time::Instant;

use super::{
    call::{Head, Render},
    decoding::Decoding,
    prepare::PreparedPrompt,
    route::{self, Choice, Routed},
};
use crate::{
    context::Context,
    error::{Failure, RETRY_AFTER, SESSION_NOT_FOUND},
    spans::Span,
    telemetry::{Generation, GenerationLabels},
    workers::Chosen,
};

/// A call whose prompts run.
pub struct TokenStreams {
    pub head: Head,
    pub stream: bool,
    pub render: Box<dyn Render>,
    pub generation: Generation,
    /// One per prompt, in order.
    pub prompts: Vec<(Decoding, LegStream)>,
}

/// The events of one prompt's generation. Dropped at any moment it ends the generation on the worker.
pub type LegStream = Pin<Box<dyn Stream<Item = Result<EngineEvent, Failure>> + Send>>;

/// What the worker's abort says of a generation that `/abort_request` ended.
const ABORTED: &str = "Aborted by /abort_request";

/// One prompt on its way through attempts on workers.
struct Leg {
    cx: Arc<Context>,
    labels: GenerationLabels,
    span: Span,
    model: Arc<str>,
    prompt: PreparedPrompt,
    deadline: Option<Instant>,
    state: State,
    attempts: u32,
    /// Workers that failed on this prompt.
    avoid: Vec<WorkerId>,
    /// Which of the n answers ended.
    ended: Vec<bool>,
    due: VecDeque<EngineEvent>,
}

enum State {
    /// For a worker, after the outcome of a trial.
    Waiting,
    Start(Box<Chosen>),
    Running(Box<Running>),
    Over,
}

/// One attempt on one worker.
struct Running {
    events: GenerateStream,
    chosen: Box<Chosen>,
    /// From the first event on, inside of the whole attempt.
    stream: Span,
    span: Span,
    /// At least one event came: from here on a failure is the client's to know.
    answered: bool,
}

pub fn run(cx: &Arc<Context>, routed: Routed) -> TokenStreams {
    let Routed { prepared, choices } = routed;
    let generation = cx.telemetry.generation(prepared.labels.clone());
    let deadline = cx.times.request.map(|limit| prepared.head.started + limit);
    let mut prompts = Vec::with_capacity(choices.len());
    for (mut prompt, choice) in prepared.prompts.into_iter().zip(choices) {
        let decoding = std::mem::take(&mut prompt.decoding);
        cx.retry.began();
        let leg = Leg {
            cx: cx.clone(),
            labels: prepared.labels.clone(),
            span: prepared.head.span.clone(),
            model: prepared.head.model.clone(),
            ended: vec![false; prepared.head.n],
            prompt,
            deadline,
            state: choice.into(),
            attempts: 0,
            avoid: Vec::new(),
            due: VecDeque::new(),
        };
        let events: LegStream = Box::pin(futures::stream::unfold(Box::new(leg), |mut leg| async move {
            let event = leg.next().await?;
            Some((event, leg))
        }));
        prompts.push((decoding, events));
    }
    TokenStreams {
        head: prepared.head,
        stream: prepared.stream,
        render: prepared.render,
        generation,
        prompts,
    }
}

// === impl Leg ===

impl Leg {
    /// The next event; `None` after all answers ended. After an error nothing follows.
    async fn next(&mut self) -> Option<Result<EngineEvent, Failure>> {
        if let Some(event) = self.due.pop_front() {
            return Some(Ok(event));
        }
        let aborted = self.prompt.live.aborted().clone();
        let cx = self.cx.clone();
        let event = tokio::select! {
            biased;
            () = cx.lifecycle.ended(), if !matches!(self.state, State::Over) => {
                let error = ApiError::unavailable("the server shut down before the answer was whole", RETRY_AFTER);
                Some(Err(error.with_code("shutting_down").into()))
            }
            () = aborted.cancelled(), if !matches!(self.state, State::Over) => {
                self.abort();
                return self.due.pop_front().map(Ok);
            }
            event = self.advance() => event,
        };
        match &event {
            Some(Ok(EngineEvent::Complete(completion))) => {
                if let Some(ended) = self.ended.get_mut(completion.index as usize) {
                    *ended = true;
                }
            }
            Some(Err(failure)) => {
                self.state = State::Over;
                self.forget_session(failure);
            }
            None => self.state = State::Over,
            Some(Ok(EngineEvent::Tokens(_))) => {}
        }
        event
    }

    async fn advance(&mut self) -> Option<Result<EngineEvent, Failure>> {
        loop {
            match std::mem::replace(&mut self.state, State::Over) {
                State::Over => return None,
                State::Waiting => match self.choose_in_turn().await {
                    Ok(chosen) => self.state = State::Start(chosen),
                    Err(failure) => return Some(Err(failure)),
                },
                State::Start(chosen) => match self.open(chosen).await {
                    Ok(running) => self.state = State::Running(Box::new(running)),
                    Err(failure) => return Some(Err(failure)),
                },
                State::Running(mut running) => {
                    let event = running.next(self.cx.times.stall).await;
                    match event {
                        Some(Ok(event)) => {
                            self.note(&mut running, &event);
                            self.state = State::Running(running);
                            return Some(Ok(event));
                        }
                        Some(Err(broken)) => {
                            if let Err(failure) = self.recover(running, broken).await {
                                return Some(Err(failure));
                            }
                        }
                        None => {
                            running
                                .chosen
                                .guard
                                .record(Outcome::Answered, Instant::now().into_std());
                            return None;
                        }
                    }
                }
            }
        }
    }

    /// A session that the worker has ended is none here either.
    fn forget_session(&self, failure: &Failure) {
        if failure.code() == SESSION_NOT_FOUND
            && let (Some(used), Some(named)) = (&self.prompt.session, &self.prompt.spec.session)
        {
            self.cx.fleet.sessions.forget(&named.id, used);
        }
    }

    async fn choose_in_turn(&mut self) -> Result<Box<Chosen>, Failure> {
        let place = (self.avoid.as_slice(), &self.span);
        route::choose_in_turn(&self.cx, &self.model, &self.prompt, place, self.deadline).await
    }

    async fn open(&mut self, chosen: Box<Chosen>) -> Result<Running, Failure> {
        let mut spec = self.prompt.spec.clone();
        spec.request_id = self.worker_id();
        spec.timeout = self
            .deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let span = self.span.call("Generate");
        if span.is_recorded() {
            span.set("rpc.system", "grpc");
            span.set("rpc.service", "sglang.grpc.scheduler.SglangScheduler");
            span.set("rpc.method", "Generate");
            span.set("smg.worker", chosen.member.worker.url().to_owned());
            span.set("smg.attempt", i64::from(self.attempts) + 1);
            span.set("request.id", spec.request_id.clone());
        }
        span.write_to(&mut spec.trace);
        let events = chosen.member.client.generate(spec).await?;
        Ok(Running {
            events,
            chosen,
            stream: Span::default(),
            span,
            answered: false,
        })
    }

    /// The id of this attempt on the worker. Two live requests there may not share one.
    fn worker_id(&self) -> String {
        let GenerateSpec { request_id, .. } = &self.prompt.spec;
        match (self.prompt.is_rid, self.attempts) {
            (true, 0) => request_id.clone(),
            (true, attempt) => format!("{request_id}-retry{attempt}"),
            (false, _) => format!("{request_id}-{:016x}", rand::random::<u64>()),
        }
    }

    fn note(&self, running: &mut Running, event: &EngineEvent) {
        if let EngineEvent::Complete(completion) = event
            && is_fault(&completion.finish)
        {
            running
                .chosen
                .guard
                .record(Outcome::ServerError, Instant::now().into_std());
        }
        if std::mem::replace(&mut running.answered, true) {
            return;
        }
        running.chosen.settle();
        running.stream = running.span.child("stream");
        let cached = match event {
            EngineEvent::Tokens(chunk) => chunk.cached_tokens,
            EngineEvent::Complete(completion) => completion.cached_tokens,
        };
        self.cx.telemetry.cache_prediction(
            &self.labels,
            running.chosen.is_exact,
            running.chosen.predicted_cached as u64,
            u64::from(cached),
        );
    }

    /// After a failure: chooses a worker for another attempt, or says why there is none.
    async fn recover(&mut self, mut running: Box<Running>, broken: Broken) -> Result<(), Failure> {
        let member = running.chosen.member.clone();
        let answered = running.answered;
        let outcome = broken.outcome(answered);
        running.span.fail(broken.error_type());
        match outcome {
            Some(outcome) => running.chosen.guard.record(outcome, Instant::now().into_std()),
            None => running.answered = false,
        }
        if outcome.is_some_and(Outcome::is_failure) {
            self.cx
                .telemetry
                .worker_error(member.worker.url(), broken.error_type());
            tracing::warn!(worker = member.worker.url(), error = %broken, "a generation failed on its worker");
        }
        if broken.lost_connection() {
            member.suspect();
        } else if broken.is_refusal() {
            member.ask_soon();
        }
        // Gives the worker's load and the rpc back before any wait.
        drop(running);
        let Broken::Engine(error) = broken else {
            return Err(broken.into());
        };
        self.attempts += 1;
        self.avoid.push(member.worker.id());
        if answered || !error.retryable() || !self.may_retry(&error) {
            return Err(error.into());
        }
        let backoff = self.cx.retry.backoff(self.attempts);
        self.cx.telemetry.retry(self.attempts, backoff);
        tokio::time::sleep(backoff).await;
        let place = (self.avoid.as_slice(), &self.span);
        let choice = route::choose(&self.cx, &self.model, &self.prompt, place)?;
        if let Choice::Made(chosen) = &choice
            && is_full(&error)
            && self.avoid.contains(&chosen.member.worker.id())
        {
            // The other worker has gone meanwhile.
            return Err(error.into());
        }
        self.state = choice.into();
        Ok(())
    }

    fn may_retry(&self, error: &EngineError) -> bool {
        // No other worker has the session, and its own may have taken the request in.
        if self.prompt.session.is_some() {
            return false;
        }
        if self.attempts >= self.cx.retry.max_attempts {
            self.cx.telemetry.retries_exhausted();
            return false;
        }
        // Asking a full worker again only adds to its load.
        if is_full(error) && !self.cx.fleet.has_other(&self.model, &self.avoid) {
            return false;
        }
        // An attempt that reached nobody has cost the workers nothing.
        let has_budget = matches!(error, EngineError::Connect { .. }) || self.cx.retry.spend();
        if !has_budget {
            self.cx.telemetry.retry_over_budget();
        }
        has_budget
    }

    /// Ends all answers that still run, as the client is told; dropping the attempt ends them on the worker.
    fn abort(&mut self) {
        self.state = State::Over;
        let running = (0u32..).zip(&mut self.ended).filter(|(_, ended)| !**ended);
        for (index, ended) in running {
            *ended = true;
            self.due.push_back(EngineEvent::Complete(aborted(index)));
        }
    }
}

impl From<Choice> for State {
    fn from(choice: Choice) -> Self {
        match choice {
            Choice::Made(chosen) => Self::Start(chosen),
            Choice::AfterTrial => Self::Waiting,
        }
    }
}

fn is_full(error: &EngineError) -> bool {
    error.status_class() == StatusClass::ResourceExhausted
}

/// An abort that says that the worker is broken. A worker that is only full (503) is none.
fn is_fault(finish: &Finish) -> bool {
    finish
        .status_code
        .is_some_and(|status| status >= 500 && status != 503)
}

fn aborted(index: u32) -> Completion {
    let message = Some(ABORTED.to_owned());
    Completion {
        index,
        finish: Finish {
            reason: FinishReason::Abort,
            matched: None,
            message,
            status_code: None,
        },
        prompt_tokens: 0,
        completion_tokens: 0,
        cached_tokens: 0,
        reasoning_tokens: 0,
        num_retractions: 0,
        spec_accepted_tokens: 0,
        spec_draft_tokens: 0,
        output_ids: Vec::new(),
        cached_tiers: None,
        times: None,
    }
}

// === impl Running ===

impl Running {
    /// `stall` bounds the silence before each event.
    async fn next(&mut self, stall: Option<Duration>) -> Option<Result<EngineEvent, Broken>> {
        let over = self.chosen.member.departure.over();
        let next = async {
            match stall {
                Some(limit) => match tokio::time::timeout(limit, self.events.next()).await {
                    Ok(next) => next.map(|event| event.map_err(Broken::Engine)),
                    Err(_) => Some(Err(Broken::Stalled(limit))),
                },
                None => self
                    .events
                    .next()
                    .await
                    .map(|event| event.map_err(Broken::Engine)),
            }
        };
        tokio::select! {
            biased;
            event = next => event,
            () = over.cancelled() => Some(Err(Broken::Removed)),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A worker that answered and was left (a stop string, a client that went) did well. Only the first
        // outcome of a guard counts, so a failure that was recorded stays.
        if self.answered {
            self.chosen
                .guard
                .record(Outcome::Answered, Instant::now().into_std());
        }
    }
}

/// Why an attempt ended.
#[derive(Debug, thiserror::Error)]
enum Broken {
    #[error(transparent)]
    Engine(EngineError),
    #[error("the worker sent nothing for {} s", .0.as_secs_f64())]
    Stalled(Duration),
    #[error("the worker was removed before the answer was whole; send the request again")]
    Removed,
}

impl Broken {
    /// What it says about the worker; `None`: nothing. A worker that is full, loads or drains says so itself and is
    /// well; the client's mistakes and a deadline that passed while tokens came say nothing against it.
    fn outcome(&self, answered: bool) -> Option<Outcome> {
        let error = match self {
            Self::Stalled(_) => return Some(Outcome::Stalled),
            Self::Removed => return None,
            Self::Engine(error) => error,
        };
        match (error, error.status_class()) {
            (
                EngineError::Connect { .. } | EngineError::Disconnected { .. } | EngineError::Protocol { .. },
                _,
            ) => Some(Outcome::TransportError),
            (_, StatusClass::ResourceExhausted | StatusClass::Unavailable) => None,
            (_, StatusClass::Internal | StatusClass::Cancelled) => Some(Outcome::ServerError),
            (_, StatusClass::Deadline) if !answered => Some(Outcome::Stalled),
            _ => Some(Outcome::Answered),
        }
    }

    fn lost_connection(&self) -> bool {
        matches!(
            self,
            Self::Engine(EngineError::Connect { .. } | EngineError::Disconnected { .. })
        )
    }

    /// The worker says itself that it does not serve now.
    fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::Engine(EngineError::Status {
                class: StatusClass::Unavailable,
                ..
            })
        )
    }

    fn error_type(&self) -> &'static str {
        match self {
            Self::Stalled(_) => "stalled",
            Self::Removed => "removed",
            Self::Engine(EngineError::Connect { .. }) => "connect",
            Self::Engine(EngineError::Disconnected { .. }) => "disconnected",
            Self::Engine(EngineError::Protocol { .. }) => "protocol",
            Self::Engine(EngineError::Deadline { .. }) => "deadline",
            Self::Engine(_) => "status",
        }
    }
}

impl From<Broken> for Failure {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Engine(error) => error.into(),
            Broken::Stalled(_) => ApiError::timeout(broken.to_string())
                .with_code("worker_stalled")
                .into(),
            Broken::Removed => ApiError::unavailable(broken.to_string(), RETRY_AFTER)
                .with_code("worker_removed")
                .into(),
        }
    }
}
