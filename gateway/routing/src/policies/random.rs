//! Each candidate is as likely as any other.

use rand::{Rng, RngExt};

use crate::policy::{Candidate, Policy, RouteRequest, Verdict};

pub(crate) const NAME: &str = "random";

pub(crate) struct Random;

impl Policy for Random {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, _: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        (!candidates.is_empty()).then(|| rng.random_range(0..candidates.len()))
    }

    fn num_drawn(&self) -> Option<usize> {
        Some(1)
    }

    fn verdicts(&self, _: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        vec![Verdict::new(0.0, "as likely as any other"); candidates.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Load, choices, now, workers};

    #[test]
    fn choices_are_uniform() {
        let candidates = workers([1, 2, 3, 4].map(|busy| Load::queued(busy * 100, busy * 100)));
        let counts = choices(&Random, &RouteRequest::new(now(), 100, 0), &candidates, 4000);
        // Standard deviation is 27: five of them either way.
        assert!(
            counts.iter().all(|count| (863..=1137).contains(count)),
            "{counts:?}"
        );
    }
}
