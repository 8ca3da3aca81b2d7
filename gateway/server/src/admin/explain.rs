//! `POST /route/explain`: which worker a request would get now, and why.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use serde::Serialize;
use serde_json::Value;
use smg_api::ApiError;

use crate::{
    context::Context,
    endpoints::{Incoming, chat, generate, json},
    error::Failure,
    pipeline,
    workers::Standing,
};

#[derive(Serialize)]
struct ExplanationView {
    model: String,
    policy: &'static str,
    prompt_tokens: usize,
    /// URL of the worker that the request would get.
    chosen: Option<String>,
    candidates: Vec<CandidateView>,
}

#[derive(Serialize)]
struct CandidateView {
    worker: String,
    worker_id: String,
    /// Leading tokens of the prompt that it holds, in any tier.
    cached_tokens: usize,
    /// Where they are known from: `events` of the worker, or what it was `sent`.
    cached_source: &'static str,
    /// Requests that run or wait at it.
    load: usize,
    /// Tokens of prompts that it has to compute before this one.
    queued_tokens: usize,
    /// Share (0 to 1) of its KV memory that is in use, where it tells.
    kv_usage: Option<f64>,
    /// Tokens of prompts that it computes per second, once that was measured.
    prefill_rate: Option<f32>,
    /// Lower is better; null: it is passed over.
    score: Option<f64>,
    reason: String,
}

/// Takes a body of chat or of `/generate` with one prompt. Nothing is generated, counted or remembered.
pub async fn explain(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::any(request)?;
    let is_chat =
        serde_json::from_slice::<Value>(&incoming.body).is_ok_and(|body| body.get("messages").is_some());
    let mut call = if is_chat {
        chat::parse(incoming)?
    } else {
        generate::parse(incoming)?
    };
    if call.prompts.len() != 1 {
        let message = format!(
            "a choice is explained for one prompt, got {}; send them one by one",
            call.prompts.len()
        );
        return Err(ApiError::bad_request(if is_chat { "messages" } else { "text" }, message).into());
    }
    for prompt in &mut call.prompts {
        // The request itself may run under this id meanwhile.
        prompt.id.is_rid = false;
        prompt.id.group = None;
    }
    let (model, standing) = pipeline::explain(&cx, call).await?;
    json(&view(&cx, model.to_string(), standing))
}

fn view(cx: &Context, model: String, standing: Standing) -> ExplanationView {
    let Standing { now, explanation, .. } = standing;
    let chosen = explanation
        .chosen
        .and_then(|place| standing.candidates.get(place));
    let chosen = chosen.map(|(worker, _, _)| worker.url().to_owned());
    let candidates = standing.candidates.iter().zip(explanation.verdicts);
    ExplanationView {
        model,
        policy: standing.policy,
        prompt_tokens: standing.prompt_tokens,
        chosen,
        candidates: candidates
            .map(|((worker, candidate, held), verdict)| CandidateView {
                worker: worker.url().to_owned(),
                worker_id: worker.id().to_string(),
                cached_tokens: held.map_or(0, |held| held.tokens()),
                cached_source: match cx.fleet.prefixes.is_exact(worker.id()) {
                    true => "events",
                    false => "sent",
                },
                load: candidate.requests(now),
                queued_tokens: candidate.queued_tokens(now),
                kv_usage: candidate.kv_usage(now),
                prefill_rate: candidate.prefill_rate,
                score: Some(verdict.score).filter(|score| score.is_finite()),
                reason: verdict.reason.into_owned(),
            })
            .collect(),
    }
}
