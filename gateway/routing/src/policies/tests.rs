use std::time::{Duration, Instant};

use proptest::prelude::*;
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::testing::{Load, fill, now, workers};
use super::*;
use crate::keys::mix;
use crate::load::{LoadReport, OwnLoad};
use crate::policy::{AssignmentMode, Candidate, RouteRequest};
use crate::worker::WorkerId;

fn every_policy() -> impl Iterator<Item = Box<dyn Policy>> {
    policy_names().map(|name| build_policy(name, PolicyParams::default()).expect("listed"))
}

#[test]
fn every_policy_is_found_under_its_name() {
    for (name, policy) in policy_names().zip(every_policy()) {
        assert_eq!(policy.name(), name);
    }
}

#[test]
fn an_unknown_name_is_answered_with_the_known_ones() {
    let error = build_policy("fastest", PolicyParams::default())
        .err()
        .expect("no such policy");
    assert_eq!(
        error.to_string(),
        "unknown policy \"fastest\"; choose one of random, round_robin, cache_aware, power_of_two, \
         least_load, prefix_hash, consistent_hashing, manual, bucket"
    );
}

#[test]
fn no_policy_chooses_among_none_and_every_one_takes_the_only_one() {
    let mut rng = rand::rng();
    let only = workers([Load::IDLE]);
    for request in [RouteRequest::new(now(), 8, 8), keyed(5, 8)] {
        for policy in every_policy() {
            assert_eq!(policy.choose(&request, &[], &mut rng), None);
            assert_eq!(policy.choose(&request, &only, &mut rng), Some(0));
            let explained = policy.explain(&request, &[], &mut rng);
            assert_eq!((explained.chosen, explained.verdicts.len()), (None, 0));
        }
    }
}

/// A request that has every key.
fn keyed(key: u64, prompt_tokens: usize) -> RouteRequest {
    RouteRequest {
        routing_key: Some(mix(key, 1)),
        prefix_key: Some(mix(key, 2)),
        ..RouteRequest::new(now(), prompt_tokens, 16)
    }
}

#[test]
fn requests_without_keys_are_spread_over_all_workers() {
    for policy in every_policy() {
        let mut candidates = workers([Load::IDLE; 8]);
        let running = fill(
            &*policy,
            &mut candidates,
            vec![RouteRequest::new(now(), 200, 16); 800],
        );
        let name = policy.name();
        match name {
            // Prompts of one length, before any was seen, are of one bucket; the balance thresholds spread them.
            "bucket" => assert!(running.iter().max() <= Some(&165), "{running:?}"),
            // Standard deviation is 9.
            "random" | "consistent_hashing" => {
                assert!(
                    running.iter().all(|count| (55..=145).contains(count)),
                    "{name}: {running:?}"
                );
            }
            "power_of_two" => {
                assert!(
                    running.iter().all(|count| (90..=110).contains(count)),
                    "{running:?}"
                );
            }
            _ => assert_eq!(running, [100; 8], "{name}"),
        }
    }
}

#[test]
fn a_fleet_that_changes_is_served_on() {
    let mut rng = StdRng::seed_from_u64(9);
    let all = workers([Load::IDLE; 12]);
    for policy in every_policy() {
        for step in 0..500usize {
            let (start, count) = (step * 5 % 11, 1 + step * 3 % 7);
            let present = &all[start..all.len().min(start + count)];
            let later = now() + Duration::from_secs(step as u64 * 60);
            let request = RouteRequest {
                now: later,
                ..keyed(step as u64 % 40, 100 + step)
            };
            let chosen = policy.choose(&request, present, &mut rng);
            assert!(
                chosen.is_some_and(|index| index < present.len()),
                "{}",
                policy.name()
            );
        }
    }
}

// ---------------------------------------------------------------- properties

const EXTREMES: [usize; 8] = [0, 1, 2, 63, 1000, u32::MAX as usize, usize::MAX / 2, usize::MAX];

fn amount() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => 0..5000usize,
        1 => (0..EXTREMES.len()).prop_map(|place| EXTREMES[place]),
    ]
}

fn fraction() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => 0.0..1.0f32,
        1 => prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(-1.0), Just(f32::MAX), Just(f32::MIN_POSITIVE)],
    ]
}

fn instant() -> impl Strategy<Value = Instant> {
    (0..40_000u64).prop_map(|seconds| now() + Duration::from_secs(seconds))
}

fn report() -> impl Strategy<Value = LoadReport> {
    (instant(), amount(), amount(), fraction()).prop_map(|(at, queued_tokens, requests, kv_usage)| {
        LoadReport {
            at,
            queued_tokens,
            requests,
            kv_usage,
        }
    })
}

fn candidate() -> impl Strategy<Value = Candidate> {
    let load = (amount(), amount(), amount()).prop_map(|(requests, prefill_tokens, output_tokens)| OwnLoad {
        requests,
        prefill_tokens,
        output_tokens,
    });
    // Few keys, so that some are given twice.
    let name = (0..30u64, 0..6u32, 0..3u32);
    let speed = (
        proptest::option::of(fraction().prop_map(|share| share * 5000.0)),
        fraction(),
    );
    (name, amount(), load, proptest::option::of(report()), speed).prop_map(
        |((key, position, priority), cached_tokens, own, report, (prefill_rate, cost))| Candidate {
            position,
            cached_tokens,
            own,
            report,
            prefill_rate,
            priority,
            cost,
            ..Candidate::new(WorkerId::new(key), mix(key, 9))
        },
    )
}

fn request() -> impl Strategy<Value = RouteRequest> {
    let keys = (
        proptest::option::of(0..20u64),
        proptest::option::of(0..20u64),
        proptest::option::of(0..8u32),
    );
    (instant(), amount(), amount(), keys).prop_map(
        |(now, prompt_tokens, expected_output_tokens, (routing_key, prefix_key, target))| RouteRequest {
            routing_key: routing_key.map(|key| mix(key, 1)),
            prefix_key: prefix_key.map(|key| mix(key, 2)),
            target,
            ..RouteRequest::new(now, prompt_tokens, expected_output_tokens)
        },
    )
}

fn params() -> impl Strategy<Value = PolicyParams> {
    let mode = prop_oneof![
        Just(AssignmentMode::Random),
        Just(AssignmentMode::MinLoad),
        Just(AssignmentMode::MinGroup)
    ];
    (0.0..=1.0f64, 0..100usize, 1.0..10.0f64, 1.0..3.0f64, mode).prop_map(
        |(cache_threshold, abs, rel, factor, assignment_mode)| PolicyParams {
            cache_threshold,
            balance_abs_threshold: abs,
            balance_rel_threshold: rel,
            prefix_hash_load_factor: factor,
            assignment_mode,
            ..PolicyParams::default()
        },
    )
}

type Calls = Vec<(RouteRequest, Vec<Candidate>)>;

fn calls() -> impl Strategy<Value = Calls> {
    proptest::collection::vec((request(), proptest::collection::vec(candidate(), 0..12)), 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever was chosen before: a choice is in the list, `explain` names the same one by the same chance and changes
    /// nothing, and it has a verdict for each candidate, of which the chosen one's is the best where the policy goes
    /// by score alone.
    #[test]
    fn choices_are_candidates_and_explained_as_they_are_made(params in params(), calls in calls(), seed: u64) {
        for name in policy_names() {
            let build = || build_policy(name, params).expect("listed");
            let (policy, unasked) = (build(), build());
            for (step, (request, candidates)) in (0u64..).zip(&calls) {
                let rng = || StdRng::seed_from_u64(mix(seed, step));
                let explained = policy.explain(request, candidates, &mut rng());
                let chosen = policy.choose(request, candidates, &mut rng());
                prop_assert_eq!(chosen.is_some(), !candidates.is_empty(), "{}", name);
                prop_assert!(chosen.is_none_or(|index| index < candidates.len()), "{}", name);
                prop_assert_eq!(explained.chosen, chosen, "{}", name);
                prop_assert_eq!(unasked.choose(request, candidates, &mut rng()), chosen, "{}", name);
                prop_assert_eq!(explained.verdicts.len(), candidates.len(), "{}", name);
                prop_assert!(explained.verdicts.iter().all(|verdict| !verdict.reason.is_empty()));
                if let (Some(chosen), true) = (chosen, name != "power_of_two") {
                    let scores: Vec<f64> = explained.verdicts.iter().map(|verdict| verdict.score).collect();
                    let least = scores.iter().copied().fold(f64::INFINITY, f64::min);
                    prop_assert!(scores[chosen] <= least, "{}: {} of {:?}", name, chosen, scores);
                }
            }
        }
    }

    /// Affinity to a key never puts more requests on a worker than its policy's bound says.
    #[test]
    fn hot_keys_stay_within_the_bounds(num_workers in 2..9usize, keys in 1..4u64, factor in 1.0..2.0f64) {
        let params = PolicyParams {
            prefix_hash_load_factor: factor,
            balance_abs_threshold: 3,
            balance_rel_threshold: 1.0,
            ..PolicyParams::default()
        };
        for name in ["prefix_hash", "bucket", "cache_aware"] {
            let policy = build_policy(name, params).expect("listed");
            let mut candidates = workers(vec![Load::IDLE; num_workers]);
            candidates[0].cached_tokens = 100;
            for sent in 1..=200 {
                let running = fill(&*policy, &mut candidates, [keyed(sent as u64 % keys, 100)]);
                let least = running.iter().copied().min().unwrap_or(0);
                let most = match name {
                    "prefix_hash" => (sent as f64 / num_workers as f64 * factor).ceil() as usize,
                    _ => least + 3 + 1,
                };
                prop_assert!(running.iter().all(|&count| count <= most), "{}: {:?}", name, running);
            }
        }
    }
}
