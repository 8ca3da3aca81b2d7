//! The one interface of a routing policy, and the values that it decides on.

use std::borrow::Cow;
use std::time::{Duration, Instant};

use rand::{Rng, RngExt};

use crate::keys::mix;
use crate::load::{LoadReport, OwnLoad};
use crate::worker::WorkerId;

/// A worker that may take the request, as it stands at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Hash of the worker's URL: the same in every gateway and after every restart.
    pub key: u64,
    /// Place among the workers of its model and role, in the order of registration and from 0.
    pub position: u32,
    /// Leading tokens of this prompt that the worker is known or believed to hold.
    pub cached_tokens: usize,
    /// What this gateway has selected the worker for.
    pub own: OwnLoad,
    /// What the worker said of itself last.
    pub report: Option<LoadReport>,
    /// Tokens of prompts that it computes per second; `None` until that was measured.
    pub prefill_rate: Option<f32>,
    /// Of workers that are equally good, the one with the highest priority is taken.
    pub priority: u32,
    /// Weight of waiting at this worker: 2 makes it count as twice as slow. Finite and above 0.
    pub cost: f32,
}

/// What a policy may know about the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteRequest {
    pub now: Instant,
    pub prompt_tokens: usize,
    /// Tokens that the answer is expected to have.
    pub expected_output_tokens: usize,
    /// [`crate::routing_key`] of what the client gave to requests that belong together.
    pub routing_key: Option<u64>,
    /// [`crate::prefix_key`] of the prompt's opening.
    pub prefix_key: Option<u64>,
    /// The position of the worker that the client asks for.
    pub target: Option<u32>,
}

/// Chooses one of the candidates. A choice is made in two parts so that it can also be tried without effect:
/// `pick` decides and changes nothing that another pick could see, `note` remembers what was picked.
pub trait Policy: Send + Sync {
    fn name(&self) -> &'static str;

    /// An index into `candidates`, `None` only if there are none.
    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize>;

    /// How each candidate stands, in their order and by the same sums as in `pick`.
    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict>;

    /// How many candidates drawn by chance the policy needs to see, where it would draw so many itself; `None`: all.
    fn num_drawn(&self) -> Option<usize> {
        None
    }

    /// Told of each pick that becomes a choice.
    fn note(&self, _request: &RouteRequest, _candidates: &[Candidate], _chosen: usize) {}

    /// Called once per attempt, while no other choice on the same workers is being made.
    fn choose(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let chosen = self.pick(request, candidates, rng)?;
        self.note(request, candidates, chosen);
        Some(chosen)
    }

    /// What `choose` would do, without doing it.
    fn explain(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Explanation {
        Explanation {
            chosen: self.pick(request, candidates, rng),
            verdicts: self.verdicts(request, candidates),
        }
    }
}

/// A choice that was not made, and why it would be.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub chosen: Option<usize>,
    /// One per candidate, in their order.
    pub verdicts: Vec<Verdict>,
}

/// How a candidate stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Lower is better; infinite where the candidate is passed over. Scores of different policies do not compare.
    pub score: f64,
    pub reason: Cow<'static, str>,
}

/// Parameters of all policies; each takes what it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyParams {
    /// cache_aware: share of the prompt (0 to 1) that a worker must hold for its cache to count. Below it
    /// the match is treated as none, so a short common opening does not tie requests to one worker.
    pub cache_threshold: f64,
    /// cache_aware and bucket: with `balance_rel_threshold`, the bound on the load gap. A worker is passed over
    /// while it runs more than this many requests more than the least loaded candidate …
    pub balance_abs_threshold: usize,
    /// … and also more than this many times as many (≥ 1).
    pub balance_rel_threshold: f64,
    /// prefix_hash: a worker is walked past while it runs more than this many times the mean (≥ 1).
    pub prefix_hash_load_factor: f64,
    /// bucket: how often the limits between buckets are derived anew.
    pub bucket_adjust_interval: Duration,
    /// manual: a key that was not used for this long is forgotten.
    pub max_idle: Duration,
    /// manual: where a new key goes.
    pub assignment_mode: AssignmentMode,
    /// Seconds that a worker counts as slower when half of its KV memory is in use.
    pub kv_pressure_weight: f64,
    /// Tokens of prompts per second of workers while none was measured (> 0).
    pub default_prefill_rate: f64,
}

/// Where the policy `manual` puts a new key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AssignmentMode {
    /// To the worker that the key's hash gives, in every gateway the same.
    #[default]
    Random,
    /// To the worker with the least work.
    MinLoad,
    /// To the worker with the fewest keys.
    MinGroup,
}

// === impl Candidate ===

impl Candidate {
    /// An idle worker of which nothing else is known.
    pub fn new(worker: WorkerId, key: u64) -> Self {
        Self {
            worker,
            key,
            position: 0,
            cached_tokens: 0,
            own: OwnLoad::default(),
            report: None,
            prefill_rate: None,
            priority: DEFAULT_PRIORITY,
            cost: 1.0,
        }
    }
}

/// Tokens that an answer without a small limit is expected to have, for the account of loads only.
pub const EXPECTED_OUTPUT_TOKENS: usize = 256;

/// Priority of a worker that has none of its own.
pub const DEFAULT_PRIORITY: u32 = 50;

// === impl RouteRequest ===

impl RouteRequest {
    /// A request without keys.
    pub fn new(now: Instant, prompt_tokens: usize, expected_output_tokens: usize) -> Self {
        Self {
            now,
            prompt_tokens,
            expected_output_tokens,
            routing_key: None,
            prefix_key: None,
            target: None,
        }
    }

    /// Tokens of the prompt that a worker which holds `cached_tokens` of it has to compute. Never zero: the last
    /// token is always computed.
    pub fn uncached_on(&self, cached_tokens: usize) -> usize {
        self.prompt_tokens.saturating_sub(cached_tokens).max(1)
    }
}

// === impl Verdict ===

impl Verdict {
    pub(crate) fn new(score: f64, reason: impl Into<Cow<'static, str>>) -> Self {
        Self {
            score,
            reason: reason.into(),
        }
    }

    pub(crate) fn passed_over(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::new(f64::INFINITY, reason)
    }
}

// === impl PolicyParams ===

impl Default for PolicyParams {
    fn default() -> Self {
        Self {
            cache_threshold: 0.3,
            balance_abs_threshold: 256,
            balance_rel_threshold: 1.5,
            prefix_hash_load_factor: 1.25,
            bucket_adjust_interval: Duration::from_secs(5),
            max_idle: Duration::from_secs(4 * 3600),
            assignment_mode: AssignmentMode::Random,
            kv_pressure_weight: 0.15,
            default_prefill_rate: 2000.0,
        }
    }
}

/// A hash of who the candidates are, in their order.
pub(crate) fn set_name(candidates: &[Candidate]) -> u64 {
    let count = candidates.len() as u64;
    candidates
        .iter()
        .fold(count, |name, candidate| mix(name, candidate.key))
}

/// Index of the best of the scored candidates: the lowest score, then the highest priority; among equals each is as
/// likely. A score that is no number counts as the worst.
pub(crate) fn best(
    candidates: &[Candidate],
    scores: impl IntoIterator<Item = (usize, f64)>,
    rng: &mut dyn Rng,
) -> Option<usize> {
    let mut best: Option<(usize, f64)> = None;
    let mut equals = 0u32;
    for (index, score) in scores {
        let score = if score.is_nan() { f64::INFINITY } else { score };
        if let Some((held, least)) = best {
            let order = score
                .total_cmp(&least)
                .then(candidates[held].priority.cmp(&candidates[index].priority));
            if order.is_gt() {
                continue;
            }
            // The n-th equal replaces the one held with probability 1/n.
            equals = if order.is_eq() { equals + 1 } else { 1 };
            if order.is_eq() && rng.random_range(0..equals) != 0 {
                continue;
            }
        } else {
            equals = 1;
        }
        best = Some((index, score));
    }
    best.map(|(index, _)| index)
}
