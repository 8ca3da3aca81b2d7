use rand::SeedableRng;
use rand::rngs::StdRng;

use super::*;
use crate::load::{LoadReport, OwnLoad};
use crate::policies::testing::{Load, choices, fill, now, worker, workers};

fn holder(number: u64, cached_tokens: usize, own: OwnLoad) -> Candidate {
    Candidate {
        cached_tokens,
        ..worker(number, own)
    }
}

/// The one worker that is always chosen for a prompt.
fn choose(params: PolicyParams, prompt_tokens: usize, candidates: &[Candidate]) -> usize {
    let request = RouteRequest::new(now(), prompt_tokens, 16);
    let counts = choices(&CacheAware::new(params), &request, candidates, 20);
    counts
        .iter()
        .position(|&count| count == 20)
        .unwrap_or_else(|| panic!("no clear choice: {counts:?}"))
}

#[test]
fn the_holder_of_the_prefix_wins_while_its_queue_is_shorter_than_the_prefix() {
    let params = PolicyParams::default();
    let idle = holder(0, 0, Load::IDLE);
    assert_eq!(
        choose(params, 1000, &[idle, holder(1, 900, Load::queued(2, 300))]),
        1
    );
    assert_eq!(
        choose(params, 1000, &[idle, holder(1, 900, Load::queued(9, 1900))]),
        0
    );
}

#[test]
fn a_copy_costs_more_than_its_computation() {
    let params = PolicyParams::default();
    let idle = holder(0, 0, Load::IDLE);
    // The holder is done 800 tokens later, which is no reason to compute 900 tokens twice.
    assert_eq!(
        choose(params, 1000, &[idle, holder(1, 900, Load::queued(4, 1700))]),
        1
    );
    // Between two holders there is no such surcharge.
    let pair = [
        holder(0, 900, Load::queued(4, 900)),
        holder(1, 900, Load::queued(4, 950)),
    ];
    assert_eq!(choose(params, 1000, &pair), 0);
}

#[test]
fn a_hot_prefix_gets_as_many_holders_as_its_load_asks_for() {
    let policy = CacheAware::new(PolicyParams::default());
    // Whoever was sent the prefix holds it; each request has 100 tokens of its own.
    let holders_after = |num_requests: usize| {
        let mut candidates = workers([Load::IDLE; 8]);
        let mut rng = StdRng::seed_from_u64(5);
        for _ in 0..num_requests {
            let request = RouteRequest::new(now(), 2100, 0);
            let chosen = policy.choose(&request, &candidates, &mut rng).expect("one");
            let candidate = &mut candidates[chosen];
            candidate.own.prefill_tokens += request.uncached_on(candidate.cached_tokens);
            candidate.own.requests += 1;
            candidate.cached_tokens = 2000;
        }
        candidates.iter().filter(|c| c.cached_tokens > 0).count()
    };
    let counts = [1, 15, 45, 400].map(holders_after);
    assert_eq!((counts[0], counts[1]), (1, 1), "{counts:?}");
    assert!((2..=4).contains(&counts[2]), "{counts:?}");
    assert_eq!(counts[3], 8, "{counts:?}");
}

#[test]
fn among_several_holders_the_less_loaded_wins() {
    let holders = [
        holder(0, 900, Load::queued(3, 500)),
        holder(1, 900, Load::queued(1, 100)),
        holder(2, 0, Load::IDLE),
    ];
    assert_eq!(choose(PolicyParams::default(), 1000, &holders), 1);
}

#[test]
fn a_match_below_the_threshold_does_not_count() {
    let params = PolicyParams {
        cache_threshold: 0.5,
        ..PolicyParams::default()
    };
    let other = holder(1, 0, Load::queued(1, 9));
    assert_eq!(
        choose(params, 1000, &[holder(0, 499, Load::queued(1, 10)), other]),
        1
    );
    assert_eq!(
        choose(params, 1000, &[holder(0, 500, Load::queued(1, 10)), other]),
        0
    );
}

#[test]
fn affinity_never_widens_the_gap_beyond_the_thresholds() {
    let params = PolicyParams {
        balance_abs_threshold: 4,
        balance_rel_threshold: 1.5,
        ..PolicyParams::default()
    };
    let policy = CacheAware::new(params);
    // The holder's requests are fully cached and cost it almost nothing, so only the bound can stop it.
    let mut candidates = workers([Load::IDLE; 3]);
    candidates[0].cached_tokens = 1_000_000;
    for _ in 0..300 {
        let running = fill(&policy, &mut candidates, [RouteRequest::new(now(), 1_000_000, 0)]);
        let least = *running.iter().min().expect("three");
        let bound = (least + 4).max((least as f64 * 1.5) as usize) + 1;
        assert!(running.iter().all(|&count| count <= bound), "{running:?}");
    }
    assert!(candidates[0].own.requests > candidates[1].own.requests);
}

#[test]
fn equal_costs_are_shared_among_all() {
    let policy = CacheAware::new(PolicyParams::default());
    let request = RouteRequest::new(now(), 100, 0);
    let counts = choices(&policy, &request, &workers([Load::IDLE; 4]), 4000);
    assert!(
        counts.iter().all(|count| (863..=1137).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_worker_that_is_measured_faster_may_have_the_longer_queue() {
    let mut pair = workers([Load::queued(1, 1000), Load::queued(1, 1600)]);
    (pair[0].prefill_rate, pair[1].prefill_rate) = (Some(1000.0), Some(4000.0));
    assert_eq!(choose(PolicyParams::default(), 500, &pair), 1);
}

#[test]
fn rates_that_differ_by_noise_send_an_idle_fleet_to_all() {
    let policy = CacheAware::new(PolicyParams::default());
    let mut pair = workers([Load::IDLE; 2]);
    (pair[0].prefill_rate, pair[1].prefill_rate) = (Some(1950.0), Some(2050.0));
    let counts = choices(&policy, &RouteRequest::new(now(), 500, 0), &pair, 400);
    assert!(counts.iter().all(|&count| count > 140), "{counts:?}");
}

#[test]
fn what_other_gateways_sent_is_seen_in_reports() {
    let mut pair = workers([Load::IDLE; 2]);
    pair[0].report = Some(LoadReport {
        at: now(),
        queued_tokens: 5000,
        requests: 3,
        kv_usage: 0.2,
    });
    assert_eq!(choose(PolicyParams::default(), 500, &pair), 1);
}

#[test]
fn requests_that_generate_are_load_too() {
    let pair = workers([Load::generating(60, 256), Load::IDLE]);
    assert_eq!(choose(PolicyParams::default(), 200, &pair), 1);
}
