//! A worker for each prompt. Its load counts from here on.

use std::sync::Arc;

use smg_engine_client::GenerateSpec;
use smg_routing::WorkerId;

use super::prepare::{Prepared, PreparedPrompt};
use crate::{
    context::Context,
    error::Failure,
    workers::{Chosen, Routable},
};

/// Output tokens that a generation without a small limit is expected to have, for load accounting only.
const EXPECTED_OUTPUT_TOKENS: u32 = 256;

/// A call with a worker chosen for each prompt.
pub struct Routed {
    pub prepared: Prepared,
    /// One per prompt, in order.
    pub chosen: Vec<Chosen>,
}

pub fn run(cx: &Arc<Context>, prepared: Prepared) -> Result<Routed, Failure> {
    let chosen = prepared
        .prompts
        .iter()
        .map(|prompt| choose(cx, &prepared.head.model, prompt, &[]))
        .collect::<Result<_, _>>()?;
    Ok(Routed { prepared, chosen })
}

/// Chooses a worker for one prompt; `avoid` lists those that it already failed on.
pub fn choose(
    cx: &Arc<Context>,
    model: &Arc<str>,
    prompt: &PreparedPrompt,
    avoid: &[WorkerId],
) -> Result<Chosen, Failure> {
    let spec = &prompt.spec;
    let expected = spec
        .sampling
        .max_new_tokens
        .unwrap_or(EXPECTED_OUTPUT_TOKENS)
        .min(EXPECTED_OUTPUT_TOKENS);
    let routable = Routable {
        tokens: &spec.input_ids,
        namespace: &namespace(spec),
        expected_output_tokens: (expected * spec.sampling.n) as usize,
    };
    let chosen = cx.fleet.choose(model, &routable, avoid)?;
    cx.telemetry
        .worker_selected(&model.clone().into(), cx.fleet.policy.name());
    Ok(chosen)
}

fn namespace(spec: &GenerateSpec) -> String {
    match (&spec.extra_key, &spec.cache_salt) {
        (None, None) => String::new(),
        (key, salt) => format!("{key:?}{salt:?}"),
    }
}
