//! Each candidate is as likely as any other.

use rand::{Rng, RngExt};

use crate::policy::{Candidate, Policy, RouteRequest};

pub(crate) const NAME: &str = "random";

pub(crate) struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        NAME
    }

    fn choose(&self, _: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        (!candidates.is_empty()).then(|| rng.random_range(0..candidates.len()))
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;
    use crate::worker::WorkerId;

    #[test]
    fn choices_are_uniform() {
        let candidates = [1, 2, 3, 4].map(|id| Candidate {
            worker: WorkerId::new(id),
            cached_tokens: 0,
            running_requests: id as usize * 100,
            pending_tokens: 0,
        });
        let mut rng = StdRng::seed_from_u64(1);
        let mut counts = [0u32; 4];
        for _ in 0..4000 {
            counts[Random
                .choose(&RouteRequest::default(), &candidates, &mut rng)
                .expect("one")] += 1;
        }
        // Standard deviation is 27: five of them either way.
        assert!(
            counts.iter().all(|count| (863..=1137).contains(count)),
            "{counts:?}"
        );
    }
}
