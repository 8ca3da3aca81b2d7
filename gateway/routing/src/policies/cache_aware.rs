//! The worker where the prompt is computed first: least of its uncached tokens and those queued before them at the
//! worker's rate, with a bound on how far affinity may unbalance the workers.
//!
//! A prefix spreads when its holders are busier than it is long. As the copy takes memory from other prefixes, what a
//! worker would have to compute only because it is not the best holder counts for more than it takes; so the noise of
//! loads moves nothing, and once there are two holders they share what comes.

use rand::Rng;

use crate::policy::{Candidate, Policy, PolicyParams, RouteRequest, Verdict, best};
use crate::wait::{Bound, Waits};

pub(crate) const NAME: &str = "cache_aware";

/// What the tokens that another worker holds cost beyond their computation, as a share of it: as much again, for those
/// that they drive out.
const COPY_SURCHARGE: f64 = 1.0;

pub(crate) struct CacheAware {
    params: PolicyParams,
}

/// What all candidates of one request are measured by.
struct Scale<'a> {
    policy: &'a CacheAware,
    request: &'a RouteRequest,
    waits: Waits,
    bound: Bound,
    most_cached: usize,
}

// === impl CacheAware ===

impl CacheAware {
    pub(crate) fn new(params: PolicyParams) -> Self {
        Self { params }
    }

    fn scale<'a>(&'a self, request: &'a RouteRequest, candidates: &[Candidate]) -> Scale<'a> {
        let cached = candidates.iter().map(|candidate| self.cached(request, candidate));
        Scale {
            policy: self,
            request,
            waits: Waits::new(&self.params, request, candidates),
            bound: Bound::new(&self.params, request, candidates),
            most_cached: cached.max().unwrap_or(0),
        }
    }

    /// Tokens of the prompt that count as cached at the worker.
    fn cached(&self, request: &RouteRequest, candidate: &Candidate) -> usize {
        let cached = candidate.cached_tokens.min(request.prompt_tokens);
        let counts = cached as f64 >= self.params.cache_threshold * request.prompt_tokens as f64;
        if counts { cached } else { 0 }
    }
}

impl Policy for CacheAware {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let scale = self.scale(request, candidates);
        let scores = candidates.iter().map(|candidate| scale.score(candidate));
        best(candidates, scores.enumerate(), rng)
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let scale = self.scale(request, candidates);
        let verdict = |candidate: &Candidate| Verdict::new(scale.score(candidate), scale.reason(candidate));
        candidates.iter().map(verdict).collect()
    }
}

// === impl Scale ===

impl Scale<'_> {
    /// Seconds until the worker has computed the prompt.
    fn score(&self, candidate: &Candidate) -> f64 {
        if !self.bound.allows(candidate) {
            return f64::INFINITY;
        }
        let cached = self.policy.cached(self.request, candidate);
        let uncached = self.request.uncached_on(cached) as f64;
        let copied = (self.most_cached - cached) as f64;
        self.waits.with(candidate, uncached + copied * COPY_SURCHARGE)
    }

    fn reason(&self, candidate: &Candidate) -> String {
        if !self.bound.allows(candidate) {
            return self.bound.reason(candidate);
        }
        format!(
            "{} of {} prompt tokens count as cached, {} are queued, {} are to be generated",
            self.policy.cached(self.request, candidate),
            self.request.prompt_tokens,
            candidate.queued_tokens(self.request.now),
            candidate.output_tokens(self.request.now),
        )
    }
}

#[cfg(test)]
mod tests;
