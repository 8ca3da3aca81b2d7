use std::collections::HashSet;
use std::time::Duration;

use super::*;
use crate::policies::testing::{Load, choices, fill, now, workers};

fn after(millis: u64, prompt_tokens: usize) -> RouteRequest {
    RouteRequest::new(now() + Duration::from_millis(millis), prompt_tokens, 0)
}

/// Lengths of a whole interval, and one that begins the next.
fn learn(policy: &Bucket, candidates: &[Candidate], lengths: &[usize]) {
    for &length in lengths {
        choices(policy, &after(0, length), candidates, 1);
    }
    choices(policy, &after(5001, lengths[0]), candidates, 1);
}

/// The bucket of the one worker that gets prompts of this length.
fn bucket_of(policy: &Bucket, candidates: &[Candidate], length: usize) -> usize {
    let request = after(5002, length);
    let counts: HashSet<Option<usize>> = (0..20)
        .map(|_| policy.pick(&request, candidates, &mut rand::rng()))
        .collect();
    assert_eq!(counts.len(), 1, "{length}: {counts:?}");
    let chosen = counts.into_iter().next().flatten().expect("there are candidates");
    let order = policy.place(&request, candidates).order;
    order.iter().position(|index| *index == chosen).expect("listed")
}

#[test]
fn without_history_lengths_are_spread_evenly() {
    let policy = Bucket::new(PolicyParams::default());
    let candidates = workers([Load::IDLE; 4]);
    let buckets = [10, 1500, 2500, 4000, 90_000].map(|length| bucket_of(&policy, &candidates, length));
    assert_eq!(buckets, [0, 1, 2, 3, 3]);
}

#[test]
fn limits_follow_what_came_so_that_each_worker_gets_equal_tokens() {
    let policy = Bucket::new(PolicyParams::default());
    let candidates = workers([Load::IDLE; 2]);
    // 100 prompts of 10 to 109 tokens: half of the tokens are in those of up to about 80.
    let lengths: Vec<usize> = (10..110).collect();
    learn(&policy, &candidates, &lengths);
    assert_eq!(bucket_of(&policy, &candidates, 70), 0);
    assert_eq!(bucket_of(&policy, &candidates, 90), 1);
    let mut tokens = [0usize; 2];
    for length in 10..110 {
        let chosen = policy.pick(&after(5002, length), &candidates, &mut rand::rng());
        tokens[chosen.expect("two")] += length;
    }
    let share = tokens[0] as f64 / (tokens[0] + tokens[1]) as f64;
    assert!((0.45..=0.55).contains(&share), "{tokens:?}");
}

#[test]
fn a_quiet_interval_keeps_the_limits() {
    let policy = Bucket::new(PolicyParams::default());
    let candidates = workers([Load::IDLE; 2]);
    let lengths: Vec<usize> = (10..110).collect();
    learn(&policy, &candidates, &lengths);
    choices(&policy, &after(60_000, 4000), &candidates, 1);
    choices(&policy, &after(120_000, 4000), &candidates, 1);
    assert_eq!(bucket_of(&policy, &candidates, 70), 0);
    assert_eq!(bucket_of(&policy, &candidates, 90), 1);
}

#[test]
fn prompts_of_one_length_use_every_worker() {
    let policy = Bucket::new(PolicyParams::default());
    let candidates = workers([Load::IDLE; 4]);
    learn(&policy, &candidates, &[500; 64]);
    let counts = choices(&policy, &after(5002, 500), &candidates, 4000);
    assert!(
        counts.iter().all(|count| (800..=1200).contains(count)),
        "{counts:?}"
    );
}

#[test]
fn a_worker_that_is_away_leaves_its_lengths_to_the_others() {
    let policy = Bucket::new(PolicyParams::default());
    let all = workers([Load::IDLE; 4]);
    for away in 0..4 {
        let others: Vec<Candidate> = all
            .iter()
            .filter(|candidate| candidate.position != away)
            .copied()
            .collect();
        for length in (0..5000).step_by(250) {
            assert!(bucket_of(&policy, &others, length) < 3);
        }
    }
}

#[test]
fn a_full_bucket_spills_into_its_neighbour() {
    let params = PolicyParams {
        balance_abs_threshold: 4,
        ..PolicyParams::default()
    };
    let policy = Bucket::new(params);
    let mut candidates = workers([Load::IDLE; 3]);
    let running = fill(&policy, &mut candidates, vec![after(0, 10); 30]);
    let order = policy.place(&after(0, 10), &candidates).order;
    let in_order: Vec<usize> = order.iter().map(|&index| running[index]).collect();
    assert!(
        in_order[0] >= in_order[1] && in_order[1] >= in_order[2],
        "{in_order:?}"
    );
    assert!(in_order[0] <= in_order[2] + 5, "{in_order:?}");
}

#[test]
fn the_window_is_bounded() {
    let policy = Bucket::new(PolicyParams::default());
    let candidates = workers([Load::IDLE; 2]);
    for length in 0..3 * MOST_LENGTHS {
        choices(&policy, &after(0, length), &candidates, 1);
    }
    let window = policy.window.lock();
    assert_eq!(window.lengths.len(), MOST_LENGTHS);
    assert!(window.lengths.iter().all(|length| *length >= 2 * MOST_LENGTHS));
}
