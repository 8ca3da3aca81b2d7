//! Requests of one routing key stay with one worker. A new key goes where its hash says, which is the same in every
//! gateway, or where the mode says; a key is remembered only if it is not where its hash would put it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::Rng;

use super::least_load::LeastLoad;
use crate::keys::mix;
use crate::policy::{AssignmentMode, Candidate, Policy, PolicyParams, RouteRequest, Verdict, set_name};
use crate::wait::work;

pub(crate) const NAME: &str = "manual";

/// Keys that are remembered at once; beyond, those not used for longest go.
const MOST_KEYS: usize = 1 << 18;

/// Idle keys are swept out so many times per idle time.
const SWEEPS: u32 = 16;

pub(crate) struct Manual {
    params: PolicyParams,
    without_key: LeastLoad,
    most_keys: usize,
    memory: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    /// Routing key → where its requests go.
    keys: HashMap<u64, Assigned>,
    /// Keys of each worker, in `keys`.
    groups: HashMap<u64, usize>,
    /// Workers that were candidates, and when last: a key whose worker is among them and away goes elsewhere.
    workers: HashMap<u64, Instant>,
    /// The set of candidates that `workers` was brought up to date for last, and when.
    noted: Option<(u64, Instant)>,
    swept: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Assigned {
    worker: u64,
    used: Instant,
}

// === impl Manual ===

impl Manual {
    pub(crate) fn new(params: PolicyParams) -> Self {
        Self {
            params,
            without_key: LeastLoad::new(params),
            most_keys: MOST_KEYS,
            memory: Mutex::default(),
        }
    }

    /// The candidate that has the key, if it is remembered and can take requests.
    fn assigned(
        &self,
        memory: &Memory,
        key: u64,
        request: &RouteRequest,
        candidates: &[Candidate],
    ) -> Option<usize> {
        let assigned = memory.keys.get(&key)?;
        if is_idle(assigned.used, request.now, self.params.max_idle) {
            return None;
        }
        candidates
            .iter()
            .position(|candidate| candidate.key == assigned.worker)
    }

    /// What a new key is placed by, a whole number; the least wins, and of equals the one that its hash prefers.
    fn placement(&self, memory: &Memory, request: &RouteRequest, candidate: &Candidate) -> f64 {
        match self.params.assignment_mode {
            AssignmentMode::Random => 0.0,
            AssignmentMode::MinLoad => work(candidate, request.now).round(),
            AssignmentMode::MinGroup => memory.groups.get(&candidate.key).copied().unwrap_or(0) as f64,
        }
    }
}

impl Policy for Manual {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        let Some(key) = request.routing_key else {
            return self.without_key.pick(request, candidates, rng);
        };
        let memory = self.memory.lock();
        if let Some(assigned) = self.assigned(&memory, key, request, candidates) {
            return Some(assigned);
        }
        let placements = candidates
            .iter()
            .map(|candidate| self.placement(&memory, request, candidate));
        let least = placements.clone().fold(f64::INFINITY, f64::min);
        let equals = placements
            .enumerate()
            .filter(|(_, placement)| *placement <= least);
        equals
            .map(|(index, _)| index)
            .max_by_key(|&index| preference(key, candidates[index].key))
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let Some(key) = request.routing_key else {
            return self.without_key.verdicts(request, candidates);
        };
        let memory = self.memory.lock();
        if let Some(assigned) = self.assigned(&memory, key, request, candidates) {
            let verdict = |index| match index == assigned {
                true => Verdict::new(0.0, "has the routing key"),
                false => Verdict::passed_over("another worker has the routing key"),
            };
            return (0..candidates.len()).map(verdict).collect();
        }
        let verdict = |candidate: &Candidate| {
            let placement = self.placement(&memory, request, candidate);
            // Preferences only part what is equal otherwise.
            let rank = 1.0 - preference(key, candidate.key) as f64 / u64::MAX as f64;
            let reason = match self.params.assignment_mode {
                AssignmentMode::Random => "the key is new: its hash decides".to_owned(),
                AssignmentMode::MinLoad => format!("the key is new: {placement:.0} tokens of work are here"),
                AssignmentMode::MinGroup => format!("the key is new: {placement} keys are here"),
            };
            Verdict::new(placement + rank, reason)
        };
        candidates.iter().map(verdict).collect()
    }

    fn note(&self, request: &RouteRequest, candidates: &[Candidate], chosen: usize) {
        let Some(key) = request.routing_key else {
            return;
        };
        let now = request.now;
        let memory = &mut *self.memory.lock();
        memory.sweep(now, self.params.max_idle, self.most_keys);
        memory.note_workers(candidates, now, self.params.max_idle);
        let worker = candidates[chosen].key;
        // The choice of the moment cannot be found again, that of the hash can.
        let by_hash = self.params.assignment_mode == AssignmentMode::Random;
        let home = memory
            .workers
            .keys()
            .max_by_key(|worker| preference(key, **worker));
        if by_hash && home == Some(&worker) && !memory.keys.contains_key(&key) {
            return;
        }
        memory.assign(key, Assigned { worker, used: now });
    }
}

/// Rendezvous hashing: the worker with the highest preference is the key's.
fn preference(key: u64, worker: u64) -> u64 {
    mix(key, worker)
}

fn is_idle(used: Instant, now: Instant, max_idle: Duration) -> bool {
    now.saturating_duration_since(used) >= max_idle
}

// === impl Memory ===

impl Memory {
    fn assign(&mut self, key: u64, assigned: Assigned) {
        let before = self.keys.insert(key, assigned);
        if before.is_some_and(|before| before.worker == assigned.worker) {
            return;
        }
        *self.groups.entry(assigned.worker).or_default() += 1;
        if let Some(group) = before.and_then(|before| self.groups.get_mut(&before.worker)) {
            *group -= 1;
        }
    }

    fn note_workers(&mut self, candidates: &[Candidate], now: Instant, max_idle: Duration) {
        let name = set_name(candidates);
        let is_noted = |(noted, at)| noted == name && !is_idle(at, now, max_idle / SWEEPS);
        if self.noted.is_some_and(is_noted) {
            return;
        }
        self.noted = Some((name, now));
        let seen = candidates.iter().map(|candidate| (candidate.key, now));
        self.workers.extend(seen);
    }

    /// Forgets what was not used for `max_idle`, and where more is left than fits, the quarter that was not used for
    /// longest.
    fn sweep(&mut self, now: Instant, max_idle: Duration, most: usize) {
        let is_full = self.keys.len() >= most;
        let swept = *self.swept.get_or_insert(now);
        if !is_full && !is_idle(swept, now, max_idle / SWEEPS) {
            return;
        }
        self.swept = Some(now);
        self.keys.retain(|_, key| !is_idle(key.used, now, max_idle));
        self.workers.retain(|_, seen| !is_idle(*seen, now, max_idle));
        if self.keys.len() >= most {
            let mut uses: Vec<Instant> = self.keys.values().map(|key| key.used).collect();
            let (_, kept_from, _) = uses.select_nth_unstable(most / 4);
            let kept_from = *kept_from;
            self.keys.retain(|_, key| key.used > kept_from);
        }
        self.groups.clear();
        for key in self.keys.values() {
            *self.groups.entry(key.worker).or_default() += 1;
        }
    }
}

#[cfg(test)]
mod tests;
