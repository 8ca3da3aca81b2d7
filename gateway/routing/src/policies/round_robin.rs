//! Workers take turns: the next is the one whose last turn lies furthest back.
//!
//! A plain counter modulo the number of candidates favours some of them whenever the set changes; turns
//! remembered per worker do not.

use std::collections::HashMap;

use parking_lot::Mutex;
use rand::Rng;

use crate::policy::{Candidate, Policy, RouteRequest, Verdict};
use crate::worker::WorkerId;

pub(crate) const NAME: &str = "round_robin";

/// Turns of workers beyond the candidates that are remembered before they are swept out.
const SPARE_TURNS: usize = 64;

#[derive(Default)]
pub(crate) struct RoundRobin {
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    last: u64,
    by_worker: HashMap<WorkerId, u64>,
}

impl Policy for RoundRobin {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, _: &RouteRequest, candidates: &[Candidate], _: &mut dyn Rng) -> Option<usize> {
        let turns = self.turns.lock();
        let first = candidates
            .iter()
            .enumerate()
            .min_by_key(|(_, candidate)| turns.of(candidate))?;
        Some(first.0)
    }

    fn verdicts(&self, _: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let turns = self.turns.lock();
        let verdict = |candidate: &Candidate| match turns.of(candidate) {
            0 => Verdict::new(0.0, "has had no turn yet"),
            turn => Verdict::new(
                turn as f64,
                format!("its last turn lies {} choices back", turns.last - turn + 1),
            ),
        };
        candidates.iter().map(verdict).collect()
    }

    fn note(&self, _: &RouteRequest, candidates: &[Candidate], chosen: usize) {
        let mut turns = self.turns.lock();
        turns.last += 1;
        let turn = turns.last;
        turns.by_worker.insert(candidates[chosen].worker, turn);
        if turns.by_worker.len() > candidates.len() + SPARE_TURNS {
            turns.forget_oldest(candidates.len() + SPARE_TURNS / 2);
        }
    }
}

impl Turns {
    /// A newcomer never had a turn and is next, once.
    fn of(&self, candidate: &Candidate) -> u64 {
        self.by_worker.get(&candidate.worker).copied().unwrap_or(0)
    }

    fn forget_oldest(&mut self, keep: usize) {
        let mut all: Vec<u64> = self.by_worker.values().copied().collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(&oldest_kept) = all.get(keep.saturating_sub(1)) {
            self.by_worker.retain(|_, turn| *turn >= oldest_kept);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::now;

    fn turn(policy: &RoundRobin, ids: &[u64]) -> u64 {
        let candidates: Vec<Candidate> = ids
            .iter()
            .map(|&id| Candidate::new(WorkerId::new(id), id))
            .collect();
        let index = policy.choose(&RouteRequest::new(now(), 8, 8), &candidates, &mut rand::rng());
        ids[index.expect("there are candidates")]
    }

    #[test]
    fn workers_take_turns() {
        let policy = RoundRobin::default();
        let order: Vec<u64> = (0..6).map(|_| turn(&policy, &[1, 2, 3])).collect();
        assert_eq!(order, [1, 2, 3, 1, 2, 3]);
    }

    #[test]
    fn counts_stay_within_one_while_the_set_changes() {
        let policy = RoundRobin::default();
        let mut counts = HashMap::from([(1, 0), (2, 0), (3, 0)]);
        for step in 0..300 {
            // Worker 4 comes and goes; the others must not notice.
            let ids: &[u64] = if step % 2 == 0 { &[4, 1, 2, 3] } else { &[1, 2, 3] };
            *counts.entry(turn(&policy, ids)).or_insert(0) += 1;
        }
        let (least, most) = (
            counts[&1].min(counts[&2]).min(counts[&3]),
            counts[&1].max(counts[&2]).max(counts[&3]),
        );
        assert!(most - least <= 1, "{counts:?}");
    }

    #[test]
    fn a_newcomer_gets_one_turn_and_no_burst() {
        let policy = RoundRobin::default();
        for _ in 0..10 {
            turn(&policy, &[1, 2]);
        }
        let order: Vec<u64> = (0..6).map(|_| turn(&policy, &[1, 2, 3])).collect();
        assert_eq!(order, [3, 1, 2, 3, 1, 2]);
    }

    #[test]
    fn turns_of_workers_that_left_are_forgotten() {
        let policy = RoundRobin::default();
        for id in 0..1000 {
            turn(&policy, &[id]);
        }
        assert!(policy.turns.lock().by_worker.len() <= 1 + SPARE_TURNS);
    }
}
