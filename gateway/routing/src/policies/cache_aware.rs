//! The worker that would be done with the request first: least of (uncached tokens + pending tokens), with a
//! bound on how far affinity may unbalance the workers.

use rand::Rng;

use crate::policy::{Candidate, Policy, PolicyParams, RouteRequest, least_by_key};

pub(crate) const NAME: &str = "cache_aware";

pub(crate) struct CacheAware {
    params: PolicyParams,
}

impl CacheAware {
    pub(crate) fn new(params: PolicyParams) -> Self {
        Self { params }
    }

    /// Requests that a worker may run and still be chosen, when the least loaded candidate runs `least`.
    fn most_requests(&self, least: usize) -> usize {
        let relative = (least as f64 * self.params.balance_rel_threshold) as usize;
        relative.max(least.saturating_add(self.params.balance_abs_threshold))
    }

    /// Tokens that this worker has to get through before the request's first token is out.
    fn cost(&self, request: &RouteRequest, candidate: &Candidate) -> usize {
        let cached = candidate.cached_tokens.min(request.prompt_tokens);
        let counts = cached as f64 >= self.params.cache_threshold * request.prompt_tokens as f64;
        let uncached = request.prompt_tokens - if counts { cached } else { 0 };
        uncached.saturating_add(candidate.pending_tokens)
    }
}

impl Policy for CacheAware {
    fn name(&self) -> &'static str {
        NAME
    }

    fn choose(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let least = candidates
            .iter()
            .map(|candidate| candidate.running_requests)
            .min()?;
        let most = self.most_requests(least);
        let costs = candidates
            .iter()
            .enumerate()
            .filter(|(_, candidate)| candidate.running_requests <= most)
            .map(|(index, candidate)| (index, self.cost(request, candidate)));
        least_by_key(costs, rng)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::worker::WorkerId;

    fn candidate(id: u64, cached_tokens: usize, running_requests: usize, pending_tokens: usize) -> Candidate {
        Candidate {
            worker: WorkerId::new(id),
            cached_tokens,
            running_requests,
            pending_tokens,
        }
    }

    fn choose(params: PolicyParams, prompt_tokens: usize, candidates: &[Candidate]) -> usize {
        let request = RouteRequest {
            prompt_tokens,
            expected_output_tokens: 16,
        };
        CacheAware::new(params)
            .choose(&request, candidates, &mut StdRng::seed_from_u64(3))
            .expect("there are candidates")
    }

    #[test]
    fn the_holder_of_the_prefix_wins_while_its_queue_is_shorter_than_the_prefix() {
        let params = PolicyParams::default();
        assert_eq!(
            choose(params, 1000, &[candidate(1, 0, 0, 0), candidate(2, 900, 2, 300)]),
            1
        );
        assert_eq!(
            choose(params, 1000, &[candidate(1, 0, 0, 0), candidate(2, 900, 9, 950)]),
            0
        );
    }

    #[test]
    fn among_several_holders_the_less_loaded_wins() {
        let holders = [
            candidate(1, 900, 3, 500),
            candidate(2, 900, 1, 100),
            candidate(3, 0, 0, 0),
        ];
        assert_eq!(choose(PolicyParams::default(), 1000, &holders), 1);
    }

    #[test]
    fn a_match_below_the_threshold_does_not_count() {
        let params = PolicyParams {
            cache_threshold: 0.5,
            ..PolicyParams::default()
        };
        let workers = [candidate(1, 499, 1, 10), candidate(2, 0, 1, 9)];
        assert_eq!(choose(params, 1000, &workers), 1);
        let workers = [candidate(1, 500, 1, 10), candidate(2, 0, 1, 9)];
        assert_eq!(choose(params, 1000, &workers), 0);
    }

    #[test]
    fn affinity_never_widens_the_gap_beyond_the_thresholds() {
        let params = PolicyParams {
            balance_abs_threshold: 4,
            balance_rel_threshold: 1.5,
            ..PolicyParams::default()
        };
        // The holder's requests are fully cached and cost it almost nothing, so only the bound can stop it.
        let mut running = [0usize; 3];
        for _ in 0..300 {
            let workers: Vec<Candidate> = (0..3)
                .map(|id| {
                    candidate(
                        id as u64,
                        if id == 0 { 1_000_000 } else { 0 },
                        running[id],
                        running[id],
                    )
                })
                .collect();
            running[choose(params, 1_000_000, &workers)] += 1;
            let least = *running.iter().min().expect("three");
            let bound = (least + 4).max((least as f64 * 1.5) as usize) + 1;
            assert!(running.iter().all(|&count| count <= bound), "{running:?}");
        }
        assert!(running[0] > running[1], "{running:?}");
    }

    #[test]
    fn equal_costs_are_shared_among_all() {
        let workers: Vec<Candidate> = (0..4).map(|id| candidate(id, 0, 0, 0)).collect();
        let policy = CacheAware::new(PolicyParams::default());
        let request = RouteRequest {
            prompt_tokens: 100,
            expected_output_tokens: 0,
        };
        let mut rng = StdRng::seed_from_u64(5);
        let mut counts = [0u32; 4];
        for _ in 0..4000 {
            counts[policy.choose(&request, &workers, &mut rng).expect("one")] += 1;
        }
        assert!(
            counts.iter().all(|count| (863..=1137).contains(count)),
            "{counts:?}"
        );
    }
}
