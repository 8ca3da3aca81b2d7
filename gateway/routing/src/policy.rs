//! The one interface of a routing policy, and the values that it decides on.

use rand::Rng;

use crate::worker::WorkerId;

/// A worker that may take the request, as it stands at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Leading tokens of this prompt that the worker is known or believed to hold.
    pub cached_tokens: usize,
    /// Requests selected for the worker and not finished.
    pub running_requests: usize,
    /// Tokens selected for the worker and not finished.
    pub pending_tokens: usize,
}

/// What a policy may know about the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteRequest {
    pub prompt_tokens: usize,
    /// Tokens that the answer is expected to have. It counts as load of the chosen worker beside the
    /// uncached part of the prompt.
    pub expected_output_tokens: usize,
}

impl RouteRequest {
    /// Work in tokens that the request brings to a worker which holds `cached_tokens` of the prompt. Never
    /// zero, so that a fully cached request still counts.
    pub fn work_on(&self, cached_tokens: usize) -> usize {
        (self.prompt_tokens.saturating_sub(cached_tokens) + self.expected_output_tokens).max(1)
    }
}

/// Chooses one of the candidates.
pub trait Policy: Send + Sync {
    fn name(&self) -> &'static str;

    /// Called once per attempt, while no other choice on the same workers is being made. Returns an index
    /// into `candidates`, `None` only if there are none.
    fn choose(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize>;
}

/// Parameters of all policies; each takes what it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyParams {
    /// cache_aware: share of the prompt (0 to 1) that a worker must hold for its cache to count. Below it
    /// the match is treated as none, so a short common opening does not tie requests to one worker.
    pub cache_threshold: f64,
    /// cache_aware: with `balance_rel_threshold`, the bound on the load gap. A worker is passed over while
    /// it runs more than this many requests more than the least loaded candidate …
    pub balance_abs_threshold: usize,
    /// … and also more than this many times as many (≥ 1).
    pub balance_rel_threshold: f64,
}

impl Default for PolicyParams {
    fn default() -> Self {
        Self {
            cache_threshold: 0.3,
            balance_abs_threshold: 64,
            balance_rel_threshold: 1.5,
        }
    }
}

/// Index of the candidate with the least `key`; among equals each is as likely.
pub(crate) fn least_by_key<K: PartialOrd>(
    candidates: impl IntoIterator<Item = (usize, K)>,
    rng: &mut dyn Rng,
) -> Option<usize> {
    use rand::RngExt;
    let mut best: Option<(usize, K)> = None;
    let mut equals = 0u32;
    for (index, key) in candidates {
        match &best {
            Some((_, least)) if key > *least => continue,
            // The n-th equal replaces the one held with probability 1/n.
            Some((_, least)) if key == *least => {
                equals += 1;
                if rng.random_range(0..equals) != 0 {
                    continue;
                }
            }
            _ => equals = 1,
        }
        best = Some((index, key));
    }
    best.map(|(index, _)| index)
}
