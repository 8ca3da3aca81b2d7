//! A worker for each prompt. Its load counts from here on.

use std::sync::Arc;

use smg_engine_client::GenerateSpec;
use smg_routing::WorkerId;
use tokio::time::Instant;

use super::prepare::{Prepared, PreparedPrompt};
use crate::{
    context::Context,
    error::Failure,
    spans::Span,
    workers::{Chosen, Routable},
};

/// Output tokens that a generation without a small limit is expected to have, for load accounting only.
const EXPECTED_OUTPUT_TOKENS: u32 = 256;

/// What the choice is called in traces.
const SPAN: &str = "choose worker";

/// A call with a worker for each prompt.
pub struct Routed {
    pub prepared: Prepared,
    /// One per prompt, in order.
    pub choices: Vec<Choice>,
}

/// What a prompt got.
pub enum Choice {
    Made(Box<Chosen>),
    /// Every worker that could serve it waits for the outcome of a trial, which may be another prompt of this call.
    AfterTrial,
}

pub fn run(cx: &Arc<Context>, prepared: Prepared) -> Result<Routed, Failure> {
    let choices = prepared
        .prompts
        .iter()
        .map(|prompt| choose(cx, &prepared.head.model, prompt, (&[], &prepared.head.span)))
        .collect::<Result<_, _>>()?;
    Ok(Routed { prepared, choices })
}

/// Chooses a worker for one prompt; `avoid` lists those that it already failed on, and `request` is its span.
pub fn choose(
    cx: &Context,
    model: &Arc<str>,
    prompt: &PreparedPrompt,
    (avoid, request): (&[WorkerId], &Span),
) -> Result<Choice, Failure> {
    let span = request.child(SPAN);
    match cx.fleet.choose(model, &routable(cx, prompt), avoid) {
        Ok(chosen) => {
            describe(&span, cx, prompt, &chosen);
            Ok(Choice::Made(count(cx, model, chosen)))
        }
        Err(unchosen) if unchosen.awaits_trial() => Ok(Choice::AfterTrial),
        Err(unchosen) => {
            span.fail(unchosen.failure.code());
            Err(unchosen.into())
        }
    }
}

fn describe(span: &Span, cx: &Context, prompt: &PreparedPrompt, chosen: &Chosen) {
    if span.is_recorded() {
        span.set("smg.policy", cx.fleet.policy.name());
        span.set("smg.worker", chosen.member.worker.url().to_owned());
        span.set("smg.prompt_tokens", prompt.spec.input_ids.len() as i64);
        span.set("smg.predicted_cached_tokens", chosen.predicted_cached as i64);
    }
}

/// The same after the outcome of the trial.
pub async fn choose_in_turn(
    cx: &Context,
    model: &Arc<str>,
    prompt: &PreparedPrompt,
    (avoid, request): (&[WorkerId], &Span),
    deadline: Option<Instant>,
) -> Result<Box<Chosen>, Failure> {
    let span = request.child(SPAN);
    let routable = routable(cx, prompt);
    let chosen = cx.fleet.choose_in_turn(model, &routable, avoid, deadline).await;
    let chosen = chosen.inspect_err(|failure| span.fail(failure.code()))?;
    describe(&span, cx, prompt, &chosen);
    Ok(count(cx, model, chosen))
}

fn count(cx: &Context, model: &Arc<str>, chosen: Chosen) -> Box<Chosen> {
    cx.telemetry
        .worker_selected(&model.clone().into(), cx.fleet.policy.name());
    Box::new(chosen)
}

fn routable(cx: &Context, prompt: &PreparedPrompt) -> Routable {
    let spec = &prompt.spec;
    let expected = spec
        .sampling
        .max_new_tokens
        .unwrap_or(EXPECTED_OUTPUT_TOKENS)
        .min(EXPECTED_OUTPUT_TOKENS);
    let expected = (expected * spec.sampling.n) as usize;
    match &prompt.session {
        Some(session) => Routable::bound(&spec.input_ids, expected, session.worker()),
        None => {
            let namespace = namespace(spec);
            let opening = cx.fleet.prefix_key(&spec.input_ids, &namespace);
            Routable::new(&spec.input_ids, &namespace, expected).tied(prompt.affinity, opening)
        }
    }
}

fn namespace(spec: &GenerateSpec) -> String {
    match (&spec.extra_key, &spec.cache_salt, spec.lora_name.as_str()) {
        (None, None, "") => String::new(),
        (key, salt, adapter) => format!("{key:?}{salt:?}{adapter:?}"),
    }
}
