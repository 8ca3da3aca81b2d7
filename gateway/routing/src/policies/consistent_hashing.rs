//! Requests of one routing key go to one worker: the one that the ring gives, the same in every gateway. A client may
//! name the worker by its place instead; requests without either go to any.
//!
//! Nothing but what is meant as a key is one: clients behind one address or with one API key are many.

use rand::{Rng, RngExt};

use crate::policy::{Candidate, Policy, RouteRequest, Verdict};
use crate::ring::Ring;

pub(crate) const NAME: &str = "consistent_hashing";

#[derive(Default)]
pub(crate) struct ConsistentHashing {
    ring: Ring,
}

fn target(request: &RouteRequest, candidates: &[Candidate]) -> Option<usize> {
    let target = request.target?;
    candidates
        .iter()
        .position(|candidate| candidate.position == target)
}

impl Policy for ConsistentHashing {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        if candidates.is_empty() {
            return None;
        }
        if let Some(target) = target(request, candidates) {
            return Some(target);
        }
        match request.routing_key {
            Some(key) => self.ring.view(candidates).walk(key).next(),
            None => Some(rng.random_range(0..candidates.len())),
        }
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let count = candidates.len();
        if let Some(target) = target(request, candidates) {
            let verdict = |index| match index == target {
                true => Verdict::new(0.0, "the request asks for it"),
                false => Verdict::passed_over("the request asks for another worker"),
            };
            return (0..count).map(verdict).collect();
        }
        let Some(key) = request.routing_key else {
            return vec![Verdict::new(0.0, "as likely as any other: the request has no routing key"); count];
        };
        let ranks = self.ring.view(candidates).ranks(key, count);
        let verdict = |rank| match rank {
            0 => Verdict::new(0.0, "the ring gives it for the routing key"),
            rank => Verdict::new(
                rank as f64,
                format!("takes the key over after {rank} other workers"),
            ),
        };
        ranks.into_iter().map(verdict).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::routing_key;
    use crate::policies::testing::{Load, choices, now, workers};

    fn with_key(key: &str) -> RouteRequest {
        RouteRequest {
            routing_key: Some(routing_key(key)),
            ..RouteRequest::new(now(), 100, 0)
        }
    }

    fn owner(candidates: &[Candidate], key: &str) -> u64 {
        let counts = choices(&ConsistentHashing::default(), &with_key(key), candidates, 3);
        candidates[counts.iter().position(|&count| count == 3).expect("sticky")].key
    }

    #[test]
    fn gateways_agree_whatever_the_order_of_their_workers() {
        let candidates = workers([Load::IDLE; 7]);
        let reversed: Vec<Candidate> = candidates.iter().rev().copied().collect();
        for user in 0..50 {
            let key = format!("user-{user}");
            assert_eq!(owner(&candidates, &key), owner(&reversed, &key));
        }
    }

    #[test]
    fn a_worker_that_joins_or_leaves_moves_its_share_of_keys_and_no_other() {
        let policy = ConsistentHashing::default();
        let all = workers([Load::IDLE; 10]);
        let mut rng = rand::rng();
        let mut moved = 0;
        for user in 0..2000 {
            let request = with_key(&format!("user-{user}"));
            let before = all[policy.choose(&request, &all, &mut rng).expect("ten")].key;
            let after = all[policy.choose(&request, &all[..9], &mut rng).expect("nine")].key;
            assert!(before == after || before == all[9].key);
            moved += usize::from(before != after);
        }
        // A tenth, and half as much again for the unevenness of the ring.
        assert!((100..=300).contains(&moved), "{moved}");
    }

    #[test]
    fn the_worker_that_is_asked_for_comes_before_the_key() {
        let candidates = workers([Load::IDLE; 5]);
        let request = RouteRequest {
            target: Some(3),
            ..with_key("user")
        };
        let policy = ConsistentHashing::default();
        assert_eq!(choices(&policy, &request, &candidates, 9), [0, 0, 0, 9, 0]);
        // It is away: the key decides.
        let others: Vec<Candidate> = candidates.iter().filter(|c| c.position != 3).copied().collect();
        let counts = choices(&policy, &request, &others, 9);
        assert_eq!(counts, choices(&policy, &with_key("user"), &others, 9));
    }

    #[test]
    fn requests_without_a_key_go_to_all() {
        let policy = ConsistentHashing::default();
        let counts = choices(
            &policy,
            &RouteRequest::new(now(), 8, 0),
            &workers([Load::IDLE; 4]),
            4000,
        );
        assert!(
            counts.iter().all(|count| (863..=1137).contains(count)),
            "{counts:?}"
        );
    }
}
