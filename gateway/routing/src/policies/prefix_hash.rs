//! Prompts of one opening go to one worker: the one that the ring gives for the opening's hash, or the next on the ring
//! that is not busy beyond the mean. It needs no index and no agreement among gateways.

use rand::Rng;

use crate::policy::{Candidate, Policy, PolicyParams, RouteRequest, Verdict, best};
use crate::ring::Ring;
use crate::wait::Waits;

pub(crate) const NAME: &str = "prefix_hash";

pub(crate) struct PrefixHash {
    params: PolicyParams,
    ring: Ring,
}

// === impl PrefixHash ===

impl PrefixHash {
    pub(crate) fn new(params: PolicyParams) -> Self {
        Self {
            params,
            ring: Ring::default(),
        }
    }

    /// Requests that a worker may run and still take this one: with it, `factor` times the mean, rounded up. The least
    /// loaded worker is always within that.
    fn most_requests(&self, request: &RouteRequest, candidates: &[Candidate]) -> usize {
        let sum = candidates.iter().fold(1usize, |sum, candidate| {
            sum.saturating_add(candidate.requests(request.now))
        });
        let mean = sum as f64 / candidates.len() as f64;
        (mean * self.params.prefix_hash_load_factor).ceil() as usize - 1
    }
}

impl Policy for PrefixHash {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        if candidates.is_empty() {
            return None;
        }
        let Some(key) = request.prefix_key else {
            let waits = Waits::new(&self.params, request, candidates);
            let scores = candidates.iter().map(|candidate| waits.of(candidate));
            return best(candidates, scores.enumerate(), rng);
        };
        let most = self.most_requests(request, candidates);
        let view = self.ring.view(candidates);
        let within = view
            .walk(key)
            .find(|&place| candidates[place].requests(request.now) <= most);
        // Counts beyond what a mean can tell apart.
        within.or_else(|| view.walk(key).next())
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let Some(key) = request.prefix_key else {
            let waits = Waits::new(&self.params, request, candidates);
            let verdict = |candidate| Verdict::new(waits.of(candidate), "least load: the prompt is empty");
            return candidates.iter().map(verdict).collect();
        };
        let most = self.most_requests(request, candidates);
        let ranks = self.ring.view(candidates).ranks(key, candidates.len());
        let running = |candidate: &Candidate| candidate.requests(request.now);
        let mut on_ring = candidates
            .iter()
            .zip(&ranks)
            .filter(|(_, rank)| **rank != usize::MAX);
        let is_bounded = on_ring.any(|(candidate, _)| running(candidate) <= most);
        let verdict = |(candidate, rank): (&Candidate, &usize)| match running(candidate) {
            _ if *rank == usize::MAX => Verdict::passed_over("another worker has its place on the ring"),
            running if running > most && is_bounded => Verdict::passed_over(format!(
                "walked past: runs {running} requests, and at most {most} are within the load factor"
            )),
            _ => Verdict::new(
                *rank as f64,
                format!("{rank} steps from the prompt's place on the ring"),
            ),
        };
        candidates.iter().zip(&ranks).map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::prefix_key;
    use crate::policies::testing::{Load, choices, fill, now, worker, workers};

    fn prompt(opening: u32) -> RouteRequest {
        RouteRequest {
            prefix_key: prefix_key(&[opening; 40], 256, ""),
            ..RouteRequest::new(now(), 40, 0)
        }
    }

    #[test]
    fn prompts_of_one_opening_meet_at_one_worker() {
        let policy = PrefixHash::new(PolicyParams::default());
        let candidates = workers([Load::IDLE; 6]);
        let mut used = [0; 6];
        for opening in 0..100 {
            let counts = choices(&policy, &prompt(opening), &candidates, 5);
            used[counts.iter().position(|&count| count == 5).expect("sticky")] += 1;
        }
        assert!(used.iter().all(|&count| count > 0), "{used:?}");
    }

    #[test]
    fn one_hot_opening_never_loads_a_worker_beyond_the_factor() {
        let policy = PrefixHash::new(PolicyParams::default());
        let mut candidates = workers([Load::IDLE; 5]);
        for sent in 1..=500 {
            let running = fill(&policy, &mut candidates, [prompt(7)]);
            let bound = (sent as f64 / 5.0 * 1.25).ceil() as usize;
            assert!(running.iter().all(|&count| count <= bound), "{sent}: {running:?}");
        }
    }

    #[test]
    fn over_the_bound_the_next_on_the_ring_takes_it_and_not_the_least_loaded() {
        let policy = PrefixHash::new(PolicyParams::default());
        let idle = workers([Load::IDLE; 4]);
        let ranks = policy
            .ring
            .view(&idle)
            .ranks(prompt(3).prefix_key.expect("a key"), 4);
        // The first is far over the mean, the second a bit below it, the others idle.
        let candidates: Vec<Candidate> = ranks
            .iter()
            .enumerate()
            .map(|(number, rank)| worker(number as u64, Load::queued([40, 5, 0, 0][*rank], 0)))
            .collect();
        let second = ranks.iter().position(|&rank| rank == 1).expect("four");
        assert_eq!(choices(&policy, &prompt(3), &candidates, 9)[second], 9);
    }

    #[test]
    fn an_empty_prompt_goes_to_the_least_load() {
        let policy = PrefixHash::new(PolicyParams::default());
        let candidates = workers([Load::queued(2, 90), Load::queued(1, 10), Load::queued(3, 50)]);
        assert_eq!(
            choices(&policy, &RouteRequest::new(now(), 0, 0), &candidates, 5),
            [0, 5, 0]
        );
    }
}
