//! A worker for each prompt. Its load counts from here on.

use std::sync::Arc;

use smg_engine_client::GenerateSpec;
use smg_routing::WorkerId;
use tokio::time::Instant;

use super::prepare::{Prepared, PreparedPrompt};
use crate::{
    context::Context,
    error::Failure,
    workers::{Chosen, Routable},
};

/// Output tokens that a generation without a small limit is expected to have, for load accounting only.
const EXPECTED_OUTPUT_TOKENS: u32 = 256;

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
        .map(|prompt| choose(cx, &prepared.head.model, prompt, &[]))
        .collect::<Result<_, _>>()?;
    Ok(Routed { prepared, choices })
}

/// Chooses a worker for one prompt; `avoid` lists those that it already failed on.
pub fn choose(
    cx: &Context,
    model: &Arc<str>,
    prompt: &PreparedPrompt,
    avoid: &[WorkerId],
) -> Result<Choice, Failure> {
    match cx.fleet.choose(model, &routable(prompt), avoid) {
        Ok(chosen) => Ok(Choice::Made(count(cx, model, chosen))),
        Err(unchosen) if unchosen.awaits_trial() => Ok(Choice::AfterTrial),
        Err(unchosen) => Err(unchosen.into()),
    }
}

/// The same after the outcome of the trial.
pub async fn choose_in_turn(
    cx: &Context,
    model: &Arc<str>,
    prompt: &PreparedPrompt,
    avoid: &[WorkerId],
    deadline: Option<Instant>,
) -> Result<Box<Chosen>, Failure> {
    let routable = routable(prompt);
    let chosen = cx.fleet.choose_in_turn(model, &routable, avoid, deadline).await?;
    Ok(count(cx, model, chosen))
}

fn count(cx: &Context, model: &Arc<str>, chosen: Chosen) -> Box<Chosen> {
    cx.telemetry
        .worker_selected(&model.clone().into(), cx.fleet.policy.name());
    Box::new(chosen)
}

fn routable(prompt: &PreparedPrompt) -> Routable {
    let spec = &prompt.spec;
    let expected = spec
        .sampling
        .max_new_tokens
        .unwrap_or(EXPECTED_OUTPUT_TOKENS)
        .min(EXPECTED_OUTPUT_TOKENS);
    let expected = (expected * spec.sampling.n) as usize;
    match &prompt.session {
        Some(session) => Routable::bound(&spec.input_ids, expected, session.worker()),
        None => Routable::new(&spec.input_ids, &namespace(spec), expected),
    }
}

fn namespace(spec: &GenerateSpec) -> String {
    match (&spec.extra_key, &spec.cache_salt) {
        (None, None) => String::new(),
        (key, salt) => format!("{key:?}{salt:?}"),
    }
}
