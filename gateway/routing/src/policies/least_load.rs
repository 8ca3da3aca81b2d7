//! The worker where a new request waits least: tokens queued there at the worker's rate, and what its KV usage and its
//! answers add.

use rand::Rng;

use crate::policy::{Candidate, Policy, PolicyParams, RouteRequest, Verdict, best};
use crate::wait::Waits;

pub(crate) const NAME: &str = "least_load";

pub(crate) struct LeastLoad {
    params: PolicyParams,
}

impl LeastLoad {
    pub(crate) fn new(params: PolicyParams) -> Self {
        Self { params }
    }
}

impl Policy for LeastLoad {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let waits = Waits::new(&self.params, request, candidates);
        let scores = candidates.iter().map(|candidate| waits.of(candidate));
        best(candidates, scores.enumerate(), rng)
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let waits = Waits::new(&self.params, request, candidates);
        let verdict = |candidate: &Candidate| {
            let (queued, output) = (
                candidate.queued_tokens(request.now),
                candidate.output_tokens(request.now),
            );
            let usage = match candidate.kv_usage(request.now) {
                Some(usage) => format!("its KV memory is {:.0} % used", usage * 100.0),
                None => "it tells no KV usage".to_owned(),
            };
            let reason = format!("{queued} tokens are queued, {output} are to be generated, {usage}");
            Verdict::new(waits.of(candidate), reason)
        };
        candidates.iter().map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::{LoadReport, OwnLoad, REPORT_LIFETIME};
    use crate::policies::testing::{Load, choices, fill, now, worker, workers};

    fn choose(request: RouteRequest, candidates: &[Candidate]) -> Vec<usize> {
        choices(&LeastLoad::new(PolicyParams::default()), &request, candidates, 30)
    }

    fn reporting(number: u64, own: OwnLoad, queued_tokens: usize, kv_usage: f32) -> Candidate {
        let report = LoadReport {
            at: now(),
            queued_tokens,
            requests: own.requests,
            kv_usage,
        };
        Candidate {
            report: Some(report),
            ..worker(number, own)
        }
    }

    #[test]
    fn own_counts_decide_where_nothing_is_reported() {
        let request = RouteRequest::new(now(), 100, 0);
        let candidates = workers([Load::queued(1, 500), Load::queued(9, 400)]);
        assert_eq!(choose(request, &candidates), [0, 30]);
        let candidates = workers([Load::generating(10, 256), Load::generating(9, 256)]);
        assert_eq!(choose(request, &candidates), [0, 30]);
    }

    #[test]
    fn a_report_decides_while_it_is_fresh() {
        let pair = [
            reporting(0, Load::queued(1, 100), 9000, 0.1),
            reporting(1, Load::queued(1, 500), 0, 0.1),
        ];
        assert_eq!(choose(RouteRequest::new(now(), 100, 0), &pair), [0, 30]);
        let later = now() + REPORT_LIFETIME + Duration::from_secs(1);
        assert_eq!(choose(RouteRequest::new(later, 100, 0), &pair), [30, 0]);
    }

    #[test]
    fn full_memory_is_worth_a_queue_elsewhere() {
        // Half full against nearly full: 0.15 s against 2.85 s, and 1000 tokens take half a second.
        let pair = [
            reporting(0, Load::IDLE, 0, 0.95),
            reporting(1, Load::queued(1, 1000), 0, 0.5),
        ];
        assert_eq!(choose(RouteRequest::new(now(), 100, 0), &pair), [0, 30]);
    }

    #[test]
    fn a_measured_rate_shortens_the_wait() {
        let mut pair = workers([Load::queued(1, 1000), Load::queued(1, 3000)]);
        (pair[0].prefill_rate, pair[1].prefill_rate) = (Some(1000.0), Some(9000.0));
        assert_eq!(choose(RouteRequest::new(now(), 100, 0), &pair), [0, 30]);
    }

    #[test]
    fn equal_requests_are_spread_evenly() {
        let policy = LeastLoad::new(PolicyParams::default());
        let mut candidates = workers([Load::IDLE; 8]);
        let running = fill(
            &policy,
            &mut candidates,
            vec![RouteRequest::new(now(), 100, 50); 800],
        );
        assert_eq!(running, [100; 8]);
    }
}
