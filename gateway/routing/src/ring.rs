//! Consistent hashing: workers as points on a ring, the same ring in every gateway.
//!
//! The ring holds every worker that was a candidate lately, so that one that is away for a while costs nothing but to be
//! walked past; which of its workers are candidates now is kept for the last few sets of them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::keys::mix;
use crate::policy::{Candidate, set_name};

/// Points of each worker: so many keep the shares of equal workers within a few tenths of each other.
const POINTS: u64 = 150;

/// Sets of candidates that are remembered: a few models, each with and without a worker.
const SETS: usize = 8;

/// Workers beyond twice the candidates that stay on the ring before those that left are swept out.
const SPARE_WORKERS: usize = 64;

/// Marks a worker of the ring that is no candidate.
const ABSENT: u32 = u32::MAX;

#[derive(Default)]
pub(crate) struct Ring {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Worker's key → its number on the ring.
    numbers: HashMap<u64, u32>,
    /// Sorted: place on the ring, number of the worker.
    points: Arc<Vec<(u64, u32)>>,
    sets: Vec<(u64, Set)>,
    /// Where the next set goes.
    next: usize,
}

/// The place of each worker of the ring among the candidates, or [`ABSENT`].
type Set = Arc<Vec<u32>>;

/// The ring as one set of candidates sees it.
pub(crate) struct View {
    points: Arc<Vec<(u64, u32)>>,
    set: Set,
}

// === impl Ring ===

impl Ring {
    pub(crate) fn view(&self, candidates: &[Candidate]) -> View {
        let name = set_name(candidates);
        let inner = &mut *self.inner.lock();
        let known = inner.sets.iter().find(|(known, _)| *known == name);
        let set = match known {
            Some((_, set)) => Arc::clone(set),
            None => inner.insert(name, candidates),
        };
        View {
            points: Arc::clone(&inner.points),
            set,
        }
    }
}

// === impl Inner ===

impl Inner {
    fn insert(&mut self, name: u64, candidates: &[Candidate]) -> Set {
        if self.numbers.len() > 2 * candidates.len() + SPARE_WORKERS {
            *self = Self::default();
        }
        let newcomers: Vec<u64> = candidates
            .iter()
            .map(|candidate| candidate.key)
            .filter(|key| !self.numbers.contains_key(key))
            .collect();
        if !newcomers.is_empty() {
            self.add(newcomers);
        }
        let mut places = vec![ABSENT; self.numbers.len()];
        for (place, candidate) in (0..).zip(candidates) {
            places[self.numbers[&candidate.key] as usize] = place;
        }
        let set = Arc::new(places);
        let entry = (name, Arc::clone(&set));
        if self.sets.len() < SETS {
            self.sets.push(entry);
        } else {
            self.sets[self.next % SETS] = entry;
        }
        self.next += 1;
        set
    }

    fn add(&mut self, keys: Vec<u64>) {
        let points = Arc::make_mut(&mut self.points);
        let sorted = points.len();
        for key in keys {
            // A key that is given twice is one worker.
            let number = self.numbers.len() as u32;
            if *self.numbers.entry(key).or_insert(number) == number {
                points.extend((0..POINTS).map(|point| (mix(key, point), number)));
            }
        }
        points[sorted..].sort_unstable();
        // Merges two sorted runs, which this sort finds.
        points.sort();
    }
}

// === impl View ===

impl View {
    /// The candidates in the order in which the ring gives them for `key`. Each comes once at least and may come again;
    /// the walk ends after one round.
    pub(crate) fn walk(&self, key: u64) -> impl Iterator<Item = usize> + '_ {
        // Keys are hashes of prompts and names, points are hashes of workers; mixing keeps the two apart.
        let start = mix(key, POINTS);
        let first = self.points.partition_point(|(point, _)| *point < start);
        let (before, after) = self.points.split_at(first);
        after.iter().chain(before).filter_map(|(_, number)| {
            // Workers that joined the ring after this set was made are none of its candidates.
            let place = self.set.get(*number as usize).copied().unwrap_or(ABSENT);
            (place != ABSENT).then_some(place as usize)
        })
    }

    /// How many steps of the walk each candidate is away from `key`, each counted once.
    pub(crate) fn ranks(&self, key: u64, num_candidates: usize) -> Vec<usize> {
        let mut ranks = vec![usize::MAX; num_candidates];
        let mut seen = 0;
        for place in self.walk(key) {
            if ranks[place] == usize::MAX {
                ranks[place] = seen;
                seen += 1;
                if seen == num_candidates {
                    break;
                }
            }
        }
        ranks
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::testing::{Load, workers};

    fn owners(ring: &Ring, candidates: &[Candidate]) -> Vec<u64> {
        let view = ring.view(candidates);
        (0..2000)
            .map(|key| candidates[view.walk(mix(key, 1)).next().expect("some")].key)
            .collect()
    }

    #[test]
    fn shares_are_about_equal() {
        let candidates = workers([Load::IDLE; 8]);
        let owners = owners(&Ring::default(), &candidates);
        for candidate in &candidates {
            let count = owners.iter().filter(|owner| **owner == candidate.key).count();
            assert!((170..=340).contains(&count), "{count}");
        }
    }

    #[test]
    fn only_the_keys_of_a_worker_that_leaves_move_and_they_return_with_it() {
        let ring = Ring::default();
        let all = workers([Load::IDLE; 8]);
        let before = owners(&ring, &all);
        let left: Vec<Candidate> = all.iter().filter(|c| c.key != all[3].key).copied().collect();
        for (old, new) in before.iter().zip(owners(&ring, &left)) {
            assert!(*old == new || *old == all[3].key);
        }
        assert_eq!(owners(&ring, &all), before);
    }

    #[test]
    fn a_ring_that_has_seen_other_sets_equals_a_new_one() {
        let old = Ring::default();
        let all = workers([Load::IDLE; 40]);
        for start in 0..30 {
            owners(&old, &all[start..start + 10]);
        }
        for set in [&all[..], &all[5..9], &all[20..]] {
            assert_eq!(owners(&old, set), owners(&Ring::default(), set));
        }
    }

    #[test]
    fn a_key_that_two_candidates_have_does_no_harm() {
        let candidates = [workers([Load::IDLE; 2]), workers([Load::IDLE; 2])].concat();
        assert!(Ring::default().view(&candidates).walk(5).all(|place| place < 4));
    }

    #[test]
    fn workers_that_left_are_swept_from_the_ring() {
        let ring = Ring::default();
        let all = workers(vec![Load::IDLE; 600]);
        for pair in all.chunks(2) {
            ring.view(pair);
        }
        let inner = ring.inner.lock();
        assert!(inner.numbers.len() <= 2 * 2 + SPARE_WORKERS + 2);
        assert_eq!(inner.points.len(), inner.numbers.len() * POINTS as usize);
        assert!(inner.sets.len() <= SETS);
    }
}
