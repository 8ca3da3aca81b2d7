//! Of two random workers, the one with fewer pending tokens: near the balance of "least loaded" without the
//! herd that runs to one worker.

use rand::{Rng, RngExt};

use crate::policy::{Candidate, Policy, RouteRequest, least_by_key};

pub(crate) const NAME: &str = "power_of_two";

pub(crate) struct PowerOfTwo;

impl Policy for PowerOfTwo {
    fn name(&self) -> &'static str {
        NAME
    }

    fn choose(&self, _: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let count = candidates.len();
        if count < 2 {
            return (count == 1).then_some(0);
        }
        let first = rng.random_range(0..count);
        // Skipping `first` in the second draw keeps the two distinct and every pair as likely.
        let second = (first + rng.random_range(1..count)) % count;
        let load = |index: usize| {
            (
                candidates[index].pending_tokens,
                candidates[index].running_requests,
            )
        };
        least_by_key([(first, load(first)), (second, load(second))], rng)
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::worker::WorkerId;

    fn candidates(pending: &[usize]) -> Vec<Candidate> {
        pending
            .iter()
            .enumerate()
            .map(|(id, &pending_tokens)| Candidate {
                worker: WorkerId::new(id as u64),
                cached_tokens: 0,
                running_requests: 0,
                pending_tokens,
            })
            .collect()
    }

    fn shares(pending: &[usize]) -> Vec<u32> {
        let mut rng = StdRng::seed_from_u64(7);
        let candidates = candidates(pending);
        let mut counts = vec![0; pending.len()];
        for _ in 0..3000 {
            counts[PowerOfTwo
                .choose(&RouteRequest::default(), &candidates, &mut rng)
                .expect("one")] += 1;
        }
        counts
    }

    #[test]
    fn the_most_loaded_is_never_chosen_because_the_two_are_distinct() {
        let counts = shares(&[10, 900, 20]);
        assert_eq!(counts[1], 0);
        // Pairs: (0,1) and (0,2) go to 0, (1,2) goes to 2.
        assert!(counts[0] > 1800 && counts[2] > 800, "{counts:?}");
    }

    #[test]
    fn equal_loads_are_shared_evenly() {
        let counts = shares(&[5, 5, 5]);
        assert!(
            counts.iter().all(|count| (850..=1150).contains(count)),
            "{counts:?}"
        );
    }
}
