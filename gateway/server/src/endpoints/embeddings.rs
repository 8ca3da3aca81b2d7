//! `/v1/embeddings` and `/encode`: vectors of prompts.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use futures::future::try_join_all;
use smg_api::{
    ApiError, EmbeddingItem, EmbeddingList, EmbeddingRequest, EmbeddingUsage, Encoded, EncodedInfo, Prompt,
    Vector, clip, sampling::check_token_id,
};
use smg_engine_client::{EmbedSpec, Embedding, EngineError, StatusClass};
use smg_routing::{Outcome, WorkerId};
use tokio::time::Instant;

use super::{Incoming, json};
use crate::{
    context::Context,
    error::Failure,
    layers::admission::Spent,
    pipeline::{BLOCKING_BYTES, CallId},
    spans::Span,
    workers::{Affinity, Chosen, Routable, Served},
};

/// Where the server sets no limit to a request.
const LIMIT: Duration = Duration::from_secs(1800);

/// The OpenAI form.
pub async fn openai(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::json(request)?;
    let request = EmbeddingRequest::parse_openai(&incoming.body)?;
    let as_base64 = request.as_base64;
    let (served, answers) = run(&cx, incoming, request, |_| "input").await?;
    let prompt_tokens = answers
        .iter()
        .map(|(_, answer)| u64::from(answer.prompt_tokens))
        .sum();
    let item = |(index, (_, answer)): (usize, (CallId, Embedding))| EmbeddingItem {
        object: "embedding",
        embedding: if as_base64 {
            Vector::Base64(answer.values)
        } else {
            Vector::Floats(answer.values)
        },
        index,
    };
    let list = EmbeddingList {
        object: "list",
        data: answers.into_iter().enumerate().map(item).collect(),
        model: served.model.to_string(),
        usage: EmbeddingUsage {
            prompt_tokens,
            total_tokens: prompt_tokens,
        },
    };
    Ok(with_cost(json(&list)?, prompt_tokens))
}

/// The native form: an object, or a list for a list.
pub async fn native(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::any(request)?;
    let request = EmbeddingRequest::parse_native(&incoming.body)?;
    let (arrived, is_batch) = (incoming.arrived, request.is_batch);
    let (_, answers) = run(&cx, incoming, request, Prompt::native_field).await?;
    let prompt_tokens = answers
        .iter()
        .map(|(_, answer)| u64::from(answer.prompt_tokens))
        .sum();
    let encoded = answers.into_iter().map(|(id, answer)| Encoded {
        embedding: answer.values,
        meta_info: EncodedInfo {
            id: id.value,
            prompt_tokens: answer.prompt_tokens,
            e2e_latency: arrived.elapsed().as_secs_f64(),
        },
    });
    let mut encoded: Vec<Encoded> = encoded.collect();
    let response = match encoded.pop() {
        Some(one) if !is_batch => json(&one),
        last => json(&encoded.into_iter().chain(last).collect::<Vec<_>>()),
    };
    Ok(with_cost(response?, prompt_tokens))
}

fn with_cost(mut response: Response, prompt_tokens: u64) -> Response {
    response.extensions_mut().insert(Spent::new(prompt_tokens));
    response
}

/// What an endpoint calls the field of a prompt.
type FieldOf = fn(&Prompt) -> &'static str;

/// The vectors of all prompts, in order.
async fn run(
    cx: &Context,
    incoming: Incoming,
    request: EmbeddingRequest,
    field_of: FieldOf,
) -> Result<(Arc<Served>, Vec<(CallId, Embedding)>), Failure> {
    let served = cx.fleet.served(request.model.as_deref())?;
    let ids = tokens(cx, &served, &incoming, request.prompts, field_of).await?;
    let calls = ids.into_iter().zip(request.routing).map(|(ids, routing)| {
        let (id, routing) = incoming.place(routing)?;
        Ok(Call {
            affinity: Affinity::of(&routing),
            cx,
            model: &served.model,
            span: &incoming.span,
            trace: incoming.trace(),
            deadline: incoming.arrived + cx.times.request.unwrap_or(LIMIT),
            id,
            ids,
        })
    });
    let calls = calls.collect::<Result<Vec<Call>, ApiError>>()?;
    let answers = try_join_all(calls.into_iter().map(Call::run)).await?;
    Ok((served, answers))
}

async fn tokens(
    cx: &Context,
    served: &Arc<Served>,
    incoming: &Incoming,
    prompts: Vec<Prompt>,
    field_of: FieldOf,
) -> Result<Vec<Vec<u32>>, Failure> {
    let inside = served.clone();
    let work = move || {
        prompts
            .into_iter()
            .map(|prompt| encode(&inside, prompt, field_of))
            .collect()
    };
    if incoming.body.len() < BLOCKING_BYTES {
        return work();
    }
    let done = cx.tasks.spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("tokenizing was interrupted: {error}")))?
}

fn encode(served: &Served, prompt: Prompt, field_of: FieldOf) -> Result<Vec<u32>, Failure> {
    let field = field_of(&prompt);
    let context = served.info.max_context_length as usize;
    let ids = match prompt {
        Prompt::Ids(ids) => ids,
        Prompt::Text(text) => {
            let most = served.tokenizer.most_bytes(context);
            if context > 0 && text.len() > most {
                let message = format!(
                    "The input ({} bytes) is longer than the model's context length ({context} tokens, at most {most} bytes).",
                    text.len()
                );
                return Err(ApiError::context_length_exceeded(field, message).into());
            }
            served.tokenizer.encode(&text, true)?
        }
    };
    let highest = ids.iter().max().copied();
    let highest = highest.ok_or_else(|| ApiError::bad_request(field, format!("{field} has no tokens")))?;
    check_token_id(field, highest, served.vocab_size())?;
    if context > 0 && ids.len() >= context {
        let message = format!(
            "The input ({} tokens) is longer than the model's context length ({context} tokens).",
            ids.len()
        );
        return Err(ApiError::context_length_exceeded(field, message).into());
    }
    Ok(ids)
}

/// The vector of one prompt.
struct Call<'a> {
    cx: &'a Context,
    model: &'a Arc<str>,
    span: &'a Span,
    trace: Vec<(String, String)>,
    deadline: Instant,
    id: CallId,
    ids: Vec<u32>,
    affinity: Affinity,
}

impl Call<'_> {
    /// Tries workers until one has answered, or one has said what is wrong.
    async fn run(self) -> Result<(CallId, Embedding), Failure> {
        let group = self.id.group.as_deref();
        let live = self
            .cx
            .live
            .enter(&self.id.value, self.id.is_rid, group)
            .map_err(|_| {
                let message = format!("Duplicate request ID detected: {}", clip(&self.id.value));
                ApiError::bad_request("rid", message).with_code("duplicate_request_id")
            })?;
        let ended = async {
            tokio::select! {
                () = live.aborted().cancelled() => aborted(),
                () = self.cx.lifecycle.ended() => aborted(),
            }
        };
        let answer = tokio::select! {
            failure = ended => return Err(failure),
            answer = self.attempts() => answer?,
        };
        drop(live);
        Ok((self.id, answer))
    }

    async fn attempts(&self) -> Result<Embedding, Failure> {
        let opening = self.cx.fleet.prefix_key(&self.ids, "");
        let routable =
            Routable::new(&self.ids, self.ids.len().saturating_sub(1), "", 0).tied(self.affinity, opening);
        let mut avoid: Vec<WorkerId> = Vec::new();
        loop {
            let deadline = Some(self.deadline);
            let mut chosen = self
                .cx
                .fleet
                .choose_in_turn(self.model, &routable, &avoid, deadline)
                .await?;
            let error = match self.attempt(&chosen, avoid.len()).await {
                Ok(answer) => {
                    chosen.guard.record(Outcome::Answered, Instant::now().into_std());
                    return Ok(answer);
                }
                Err(error) => error,
            };
            if let Some(outcome) = outcome(&error) {
                chosen.guard.record(outcome, Instant::now().into_std());
            }
            avoid.push(chosen.member.worker.id());
            drop(chosen);
            let attempts = u32::try_from(avoid.len()).unwrap_or(u32::MAX);
            let is_last =
                attempts >= self.cx.retry.max_attempts || !self.cx.fleet.has_other(self.model, &avoid);
            if !error.retryable() || is_last {
                return Err(error.into());
            }
            tokio::time::sleep(self.cx.retry.backoff(attempts)).await;
        }
    }

    async fn attempt(&self, chosen: &Chosen, num_failed: usize) -> Result<Embedding, EngineError> {
        let span = self.span.call("Embed");
        let mut trace = self.trace.clone();
        span.write_to(&mut trace);
        let request_id = match (self.id.is_rid, num_failed) {
            (true, 0) => self.id.value.clone(),
            (true, attempt) => format!("{}-retry{attempt}", self.id.value),
            (false, _) => format!("{}-{:016x}", self.id.value, rand::random::<u64>()),
        };
        let spec = EmbedSpec {
            request_id,
            input_ids: self.ids.clone(),
            timeout: self.deadline.saturating_duration_since(Instant::now()),
            trace,
        };
        let answer = chosen.member.client.embed(spec).await;
        answer.inspect_err(|error| span.fail(&error.message()))
    }
}

fn aborted() -> Failure {
    ApiError::unavailable("the request was aborted", 1)
        .with_code("aborted")
        .into()
}

/// What a failure says about the worker; `None`: nothing.
fn outcome(error: &EngineError) -> Option<Outcome> {
    match (error, error.status_class()) {
        (
            EngineError::Connect { .. } | EngineError::Disconnected { .. } | EngineError::Protocol { .. },
            _,
        ) => Some(Outcome::TransportError),
        (_, StatusClass::ResourceExhausted | StatusClass::Unavailable) => None,
        (_, StatusClass::Internal | StatusClass::Cancelled) => Some(Outcome::ServerError),
        (_, StatusClass::Deadline) => Some(Outcome::Stalled),
        _ => Some(Outcome::Answered),
    }
}
