//! Workers and repeated choices for the tests of policies.

use std::sync::OnceLock;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::keys::mix;
use crate::load::OwnLoad;
use crate::policy::{Candidate, Policy, RouteRequest};
use crate::worker::WorkerId;

/// The instant that all tests count from.
#[expect(
    clippy::disallowed_methods,
    reason = "a test needs some instant to count from; it never waits"
)]
pub(crate) fn now() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Loads of workers in a test.
pub(crate) struct Load;

impl Load {
    pub(crate) const IDLE: OwnLoad = OwnLoad {
        requests: 0,
        prefill_tokens: 0,
        output_tokens: 0,
    };

    /// Requests with so many tokens of prompts to compute.
    pub(crate) fn queued(requests: usize, prefill_tokens: usize) -> OwnLoad {
        OwnLoad {
            requests,
            prefill_tokens,
            output_tokens: 0,
        }
    }

    /// Requests that generate, each with `each` tokens to come.
    pub(crate) fn generating(requests: usize, each: usize) -> OwnLoad {
        OwnLoad {
            requests,
            prefill_tokens: 0,
            output_tokens: requests * each,
        }
    }
}

/// A worker with this load; its number is its id and its place.
pub(crate) fn worker(number: u64, own: OwnLoad) -> Candidate {
    Candidate {
        own,
        position: u32::try_from(number).expect("small"),
        ..Candidate::new(WorkerId::new(number), mix(number, 42))
    }
}

/// One worker for each load.
pub(crate) fn workers(loads: impl IntoIterator<Item = OwnLoad>) -> Vec<Candidate> {
    (0..)
        .zip(loads)
        .map(|(number, load)| worker(number, load))
        .collect()
}

/// How often each candidate is chosen in `times` choices among the same.
pub(crate) fn choices(
    policy: &dyn Policy,
    request: &RouteRequest,
    candidates: &[Candidate],
    times: usize,
) -> Vec<usize> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut counts = vec![0; candidates.len()];
    for _ in 0..times {
        counts[policy
            .choose(request, candidates, &mut rng)
            .expect("there are candidates")] += 1;
    }
    counts
}

/// Sends `requests` one after the other, each as load of the worker that was chosen for it, and returns the
/// requests of each.
pub(crate) fn fill(
    policy: &dyn Policy,
    candidates: &mut [Candidate],
    requests: impl IntoIterator<Item = RouteRequest>,
) -> Vec<usize> {
    let mut rng = StdRng::seed_from_u64(11);
    for request in requests {
        let chosen = policy
            .choose(&request, candidates, &mut rng)
            .expect("there are candidates");
        let candidate = &mut candidates[chosen];
        candidate.own.requests += 1;
        candidate.own.prefill_tokens += request.uncached_on(candidate.cached_tokens);
        candidate.own.output_tokens += request.expected_output_tokens;
    }
    candidates
        .iter()
        .map(|candidate| candidate.own.requests)
        .collect()
}
