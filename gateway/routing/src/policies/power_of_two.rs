//! Of two random workers, the one with less work in tokens: near the balance of "least loaded" without the herd that
//! runs to one worker.

use rand::{Rng, RngExt};

use crate::policy::{Candidate, Policy, RouteRequest, Verdict, best};
use crate::wait::work;

pub(crate) const NAME: &str = "power_of_two";

pub(crate) struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let count = candidates.len();
        if count < 2 {
            return (count == 1).then_some(0);
        }
        let first = rng.random_range(0..count);
        // Skipping `first` in the second draw keeps the two distinct and every pair as likely.
        let second = (first + rng.random_range(1..count)) % count;
        let scored = [first, second].map(|index| (index, work(&candidates[index], request.now)));
        best(candidates, scored, rng)
    }

    fn num_drawn(&self) -> Option<usize> {
        Some(2)
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let verdict = |candidate: &Candidate| {
            let (queued, output) = (
                candidate.queued_tokens(request.now),
                candidate.output_tokens(request.now),
            );
            let reason = format!(
                "{queued} tokens are queued, {output} are to be generated; two drawn by chance compare"
            );
            Verdict::new(work(candidate, request.now), reason)
        };
        candidates.iter().map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Load, choices, now, workers};

    fn shares(pending: [usize; 3]) -> Vec<usize> {
        let candidates = workers(pending.map(|tokens| Load::queued(1, tokens)));
        choices(&PowerOfTwo, &RouteRequest::new(now(), 100, 0), &candidates, 3000)
    }

    #[test]
    fn the_most_loaded_is_never_chosen_because_the_two_are_distinct() {
        let counts = shares([10, 900, 20]);
        assert_eq!(counts[1], 0);
        // Pairs: (0,1) and (0,2) go to 0, (1,2) goes to 2.
        assert!(counts[0] > 1800 && counts[2] > 800, "{counts:?}");
    }

    #[test]
    fn equal_loads_are_shared_evenly() {
        let counts = shares([5, 5, 5]);
        assert!(
            counts.iter().all(|count| (850..=1150).contains(count)),
            "{counts:?}"
        );
    }

    #[test]
    fn tokens_count_and_not_requests() {
        let candidates = workers([Load::queued(1, 8000), Load::queued(9, 900)]);
        let counts = choices(&PowerOfTwo, &RouteRequest::new(now(), 100, 0), &candidates, 50);
        assert_eq!(counts, [0, 50]);
    }

    #[test]
    fn a_dear_worker_counts_for_more_and_priority_decides_among_equals() {
        let mut candidates = workers([Load::queued(1, 900), Load::queued(1, 1000)]);
        candidates[0].cost = 1.2;
        let request = RouteRequest::new(now(), 100, 0);
        assert_eq!(choices(&PowerOfTwo, &request, &candidates, 50), [0, 50]);
        let mut candidates = workers([Load::queued(1, 900), Load::queued(1, 900)]);
        candidates[0].priority = 51;
        assert_eq!(choices(&PowerOfTwo, &request, &candidates, 50), [50, 0]);
    }
}
