use super::*;
use crate::keys::routing_key;
use crate::policies::testing::{Load, choices, now, workers};

fn manual(assignment_mode: AssignmentMode) -> Manual {
    Manual::new(PolicyParams {
        assignment_mode,
        ..PolicyParams::default()
    })
}

fn request(user: usize, seconds: u64) -> RouteRequest {
    RouteRequest {
        routing_key: Some(routing_key(&format!("user-{user}"))),
        ..RouteRequest::new(now() + Duration::from_secs(seconds), 100, 0)
    }
}

/// The key of the worker that gets the request.
fn send(policy: &Manual, request: &RouteRequest, candidates: &[Candidate]) -> u64 {
    let chosen = policy.choose(request, candidates, &mut rand::rng());
    candidates[chosen.expect("there are candidates")].key
}

fn num_remembered(policy: &Manual) -> usize {
    policy.memory.lock().keys.len()
}

#[test]
fn gateways_agree_on_new_keys_and_remember_none_of_them() {
    let (one, other) = (manual(AssignmentMode::Random), manual(AssignmentMode::Random));
    let candidates = workers([Load::IDLE; 5]);
    let reversed: Vec<Candidate> = candidates.iter().rev().copied().collect();
    let mut groups: HashMap<u64, usize> = HashMap::new();
    for user in 0..500 {
        let worker = send(&one, &request(user, 0), &candidates);
        assert_eq!(worker, send(&other, &request(user, 0), &reversed));
        *groups.entry(worker).or_default() += 1;
    }
    assert_eq!((num_remembered(&one), num_remembered(&other)), (0, 0));
    assert!(groups.len() == 5 && groups.values().all(|count| (60..=140).contains(count)));
}

#[test]
fn a_key_whose_worker_was_away_stays_where_it_went() {
    let policy = manual(AssignmentMode::Random);
    let all = workers([Load::IDLE; 4]);
    let home = send(&policy, &request(1, 0), &all);
    let others: Vec<Candidate> = all.iter().filter(|c| c.key != home).copied().collect();
    let shelter = send(&policy, &request(1, 1), &others);
    assert_ne!(shelter, home);
    assert_eq!(send(&policy, &request(1, 2), &all), shelter);
    assert_eq!(num_remembered(&policy), 1);
    // When that one leaves too, the key moves once more.
    let without: Vec<Candidate> = all.iter().filter(|c| c.key != shelter).copied().collect();
    assert_eq!(send(&policy, &request(1, 3), &without), home);
}

#[test]
fn a_key_that_was_idle_for_too_long_starts_anew() {
    let policy = manual(AssignmentMode::MinLoad);
    let mut candidates = workers([Load::queued(1, 10), Load::IDLE]);
    let hours = |count: u64| count * 3600;
    let first = send(&policy, &request(1, 0), &candidates);
    assert_eq!(first, candidates[1].key);
    (candidates[0].own, candidates[1].own) = (Load::IDLE, Load::queued(9, 900));
    assert_eq!(send(&policy, &request(1, hours(3)), &candidates), first);
    assert_eq!(
        send(&policy, &request(1, hours(6)), &candidates),
        first,
        "used 3 hours ago"
    );
    assert_eq!(
        send(&policy, &request(1, hours(10)), &candidates),
        candidates[0].key
    );
}

#[test]
fn min_group_gives_each_worker_as_many_keys() {
    let policy = manual(AssignmentMode::MinGroup);
    let candidates = workers([Load::queued(50, 5000), Load::IDLE, Load::IDLE]);
    for round in 0..3 {
        for user in 0..90 {
            send(&policy, &request(user, round), &candidates);
        }
        let memory = policy.memory.lock();
        assert!(candidates.iter().all(|c| memory.groups[&c.key] == 30));
    }
}

#[test]
fn groups_count_what_is_remembered_whatever_happens() {
    let mut policy = manual(AssignmentMode::MinGroup);
    policy.most_keys = 64;
    let all = workers([Load::IDLE; 6]);
    for step in 0..2000usize {
        let seen = &all[step % 4..4 + step % 3];
        send(&policy, &request(step * 7 % 150, step as u64 * 40), seen);
        let memory = policy.memory.lock();
        let mut counted: HashMap<u64, usize> = HashMap::new();
        for key in memory.keys.values() {
            *counted.entry(key.worker).or_default() += 1;
        }
        let held: HashMap<u64, usize> = memory
            .groups
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(worker, count)| (*worker, *count))
            .collect();
        assert_eq!(held, counted);
    }
}

#[test]
fn memory_is_bounded_and_the_longest_unused_go() {
    let mut policy = manual(AssignmentMode::MinLoad);
    policy.most_keys = 100;
    let candidates = workers([Load::IDLE; 3]);
    for user in 0..1000 {
        send(&policy, &request(user, user as u64), &candidates);
        assert!(num_remembered(&policy) <= 100);
    }
    let memory = policy.memory.lock();
    assert!((925..1000).all(|user| {
        let key = request(user, 0).routing_key.expect("a key");
        memory.keys.contains_key(&key)
    }));
}

#[test]
fn idle_keys_are_swept_out_when_others_come() {
    let policy = manual(AssignmentMode::MinLoad);
    let candidates = workers([Load::IDLE; 3]);
    for user in 0..50 {
        send(&policy, &request(user, 0), &candidates);
    }
    assert_eq!(num_remembered(&policy), 50);
    send(&policy, &request(99, 5 * 3600), &candidates);
    assert_eq!(num_remembered(&policy), 1);
}

#[test]
fn requests_without_a_key_go_to_the_least_load() {
    let policy = manual(AssignmentMode::Random);
    let candidates = workers([Load::queued(1, 90), Load::IDLE, Load::queued(1, 50)]);
    assert_eq!(
        choices(&policy, &RouteRequest::new(now(), 100, 0), &candidates, 9),
        [0, 9, 0]
    );
    assert_eq!(num_remembered(&policy), 0);
}
