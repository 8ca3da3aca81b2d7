//! A worker for each prompt. Its load counts from here on.

use std::sync::Arc;

use smg_api::ApiError;
use smg_engine_client::GenerateSpec;
use smg_routing::{EXPECTED_OUTPUT_TOKENS, WorkerId};
use tokio::time::Instant;

use super::prepare::{Prepared, PreparedPrompt};
use crate::{
    context::Context,
    error::Failure,
    spans::Span,
    workers::{Chosen, Routable, Standing, cache_namespace},
};

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
            describe(&span, prompt, &chosen);
            Ok(Choice::Made(count(cx, model, chosen)))
        }
        Err(unchosen) if unchosen.awaits_trial() => Ok(Choice::AfterTrial),
        Err(unchosen) => {
            span.fail(unchosen.failure.code());
            Err(unchosen.into())
        }
    }
}

fn describe(span: &Span, prompt: &PreparedPrompt, chosen: &Chosen) {
    if span.is_recorded() {
        span.set("smg.policy", chosen.policy);
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
    describe(&span, prompt, &chosen);
    Ok(count(cx, model, chosen))
}

fn count(cx: &Context, model: &Arc<str>, chosen: Chosen) -> Box<Chosen> {
    cx.telemetry.worker_selected(&model.clone().into(), chosen.policy);
    Box::new(chosen)
}

/// How the workers stand to the first prompt.
pub fn explain(cx: &Context, prepared: &Prepared) -> Result<Standing, Failure> {
    let prompt = prepared
        .prompts
        .first()
        .ok_or_else(|| ApiError::internal("a call without a prompt"))?;
    let standing = cx.fleet.explain(&prepared.head.model, &routable(cx, prompt));
    Ok(standing?)
}

fn routable(cx: &Context, prompt: &PreparedPrompt) -> Routable {
    let spec = &prompt.spec;
    let limit = spec.sampling.max_new_tokens.map(|limit| limit as usize);
    let expected = limit
        .unwrap_or(EXPECTED_OUTPUT_TOKENS)
        .min(EXPECTED_OUTPUT_TOKENS);
    let expected = expected * spec.sampling.n as usize;
    match &prompt.session {
        Some(session) => Routable::bound(&spec.input_ids, expected, session.worker()),
        None => {
            let namespace = namespace(spec);
            let opening = cx.fleet.prefix_key(&spec.input_ids, &namespace);
            Routable::new(&spec.input_ids, num_reusable(spec), &namespace, expected)
                .tied(prompt.affinity, opening)
        }
    }
}

/// Leading tokens of the prompt that can come from a cache: the last one is always computed, and so are those whose
/// log probabilities are wanted.
fn num_reusable(spec: &GenerateSpec) -> usize {
    let before_last = spec.input_ids.len().saturating_sub(1);
    let is_bounded = spec.return_logprob && spec.logprob_start_len >= 0;
    match usize::try_from(spec.logprob_start_len) {
        Ok(start) if is_bounded => start.min(before_last),
        _ => before_last,
    }
}

/// As the engine makes it: `extra_key` with `cache_salt` appended.
fn namespace(spec: &GenerateSpec) -> String {
    let parts = [&spec.extra_key, &spec.cache_salt];
    let is_set = parts.iter().any(|part| part.is_some());
    let joined: String = parts.into_iter().flatten().map(String::as_str).collect();
    cache_namespace(is_set.then_some(joined.as_str()), &spec.lora_name)
}
