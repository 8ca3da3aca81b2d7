//! What a simulation is told, and what is allowed.

use std::num::NonZeroU32;

use smg_routing::{PolicyParams, build_policy, policy_names};

use crate::error::SimulateError;
use crate::{ORACLE, UPSTREAM_CACHE_AWARE};

/// How fast an engine is.
///
/// ```text
/// pass over prompts = step_ms + tokens / prefill_rate
/// pass over answers = step_ms + request_us × requests + kv_token_ns × tokens of their context
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Speed {
    /// Prompt tokens per second.
    pub prefill_rate: f64,
    /// Milliseconds of every pass.
    pub step_ms: f64,
    /// Microseconds for each request that gets a token.
    pub request_us: f64,
    /// Nanoseconds for each token of context that is read.
    pub kv_token_ns: f64,
}

/// The engines, all alike.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineParams {
    pub speed: Speed,
    pub page_size: NonZeroU32,
    /// Tokens that the memory takes, those of running requests included.
    pub kv_tokens: usize,
    /// Prompt tokens of one pass at most.
    pub prefill_budget: usize,
}

/// A fleet and what shall be tried on it.
#[derive(Clone, Debug, PartialEq)]
pub struct Params {
    pub num_workers: usize,
    /// Gateways that do not talk to each other; each request comes to one of them by chance.
    pub num_gateways: usize,
    pub policies: Vec<String>,
    pub engine: EngineParams,
    /// Milliseconds until gateways hear what an engine caches and how loaded it is; `None`: they never do, and go by
    /// what they have sent.
    pub event_delay_ms: Option<f64>,
    pub seed: u64,
}

impl Params {
    /// Policies of the product, and those that only a simulation has.
    pub fn policy_names() -> impl Iterator<Item = &'static str> {
        policy_names().chain([ORACLE, UPSTREAM_CACHE_AWARE])
    }

    pub fn check(&self) -> Result<(), SimulateError> {
        self.check_policies()?;
        let EngineParams {
            speed,
            page_size,
            kv_tokens,
            prefill_budget,
        } = self.engine;
        let page_size = f64::from(page_size.get());
        within("--workers", self.num_workers as f64, (1.0, 4096.0), "workers")?;
        within("--gateways", self.num_gateways as f64, (1.0, 256.0), "gateways")?;
        within("--page-size", page_size, (1.0, 4096.0), "tokens")?;
        within(
            "--kv-tokens",
            kv_tokens as f64,
            (page_size, 1e9),
            "tokens (the least is a page)",
        )?;
        within("--prefill-budget", prefill_budget as f64, (1.0, 1e9), "tokens")?;
        within(
            "--prefill-rate",
            speed.prefill_rate,
            (0.001, 1e9),
            "tokens per second",
        )?;
        within("--step-ms", speed.step_ms, (0.001, 1e6), "milliseconds")?;
        within("--request-us", speed.request_us, (0.0, 1e9), "microseconds")?;
        within("--kv-token-ns", speed.kv_token_ns, (0.0, 1e9), "nanoseconds")?;
        within(
            "--event-delay-ms",
            self.event_delay_ms.unwrap_or(0.0),
            (0.0, 1e6),
            "milliseconds",
        )
    }

    fn check_policies(&self) -> Result<(), SimulateError> {
        within("--policy", self.policies.len() as f64, (1.0, 64.0), "names")?;
        for (place, name) in self.policies.iter().enumerate() {
            let is_ours = [ORACLE, UPSTREAM_CACHE_AWARE].contains(&name.as_str());
            if !is_ours && build_policy(name, PolicyParams::default()).is_err() {
                return Err(SimulateError::UnknownPolicy {
                    given: name.clone(),
                    known: Self::policy_names().collect::<Vec<_>>().join(", "),
                });
            }
            if self.policies[..place].contains(name) {
                return Err(SimulateError::PolicyTwice { given: name.clone() });
            }
        }
        Ok(())
    }
}

fn within(
    option: &'static str,
    given: f64,
    (least, most): (f64, f64),
    unit: &str,
) -> Result<(), SimulateError> {
    // A value that is no number is in no range.
    if (least..=most).contains(&given) {
        return Ok(());
    }
    let (given, allowed) = (given.to_string(), format!("{least} to {most} {unit}"));
    Err(SimulateError::OutOfRange {
        option,
        given,
        allowed,
    })
}

// === impl Speed ===

impl Speed {
    /// Seconds of a pass over prompts.
    pub(crate) fn prefill(&self, num_tokens: usize) -> f64 {
        self.step_ms / 1e3 + num_tokens as f64 / self.prefill_rate
    }

    /// Seconds of a pass that gives each of the running requests a token.
    pub(crate) fn decode(&self, num_requests: usize, context: usize) -> f64 {
        (self.step_ms / 1e3)
            + num_requests as f64 * self.request_us / 1e6
            + context as f64 * self.kv_token_ns / 1e9
    }
}
