//! All workers of a gateway, shared between its tasks, and the selection of one for a request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rand::{Rng, RngExt};

use crate::breaker::BreakerParams;
use crate::health::{HealthParams, WorkerState};
use crate::policy::{Candidate, Explanation, Policy, RouteRequest};
use crate::worker::{LoadGuard, Role, Worker, WorkerId, WorkerInfo};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerParams {
    pub health: HealthParams,
    pub breaker: BreakerParams,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("worker {url} is already registered (id {id}); remove it before adding it again")]
pub struct AddWorkerError {
    pub url: String,
    pub id: WorkerId,
}

/// What is to be selected.
#[derive(Clone, Copy, Debug)]
pub struct Query<'a> {
    /// `None`: any model.
    pub model: Option<&'a str>,
    pub role: Role,
    pub request: RouteRequest,
    /// Leading tokens of the prompt that workers hold; a worker that is not listed holds none.
    pub cached: &'a [(WorkerId, usize)],
    /// Workers that this request has failed on. They are taken only if there is no other.
    pub avoid: &'a [WorkerId],
    /// The one worker that can take the request.
    pub only: Option<WorkerId>,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SelectError {
    #[error("no worker serves model {model:?}; models served: {}", known.join(", "))]
    UnknownModel { model: String, known: Vec<String> },
    /// Workers exist, but none can take a request now.
    #[error("no {} worker is available: {loading} loading, {unhealthy} unhealthy, {draining} draining, {tripped} with an open breaker", role.name())]
    Unavailable {
        role: Role,
        loading: usize,
        unhealthy: usize,
        draining: usize,
        tripped: usize,
        /// When the first breaker lets a request through.
        retry_after: Option<Duration>,
        /// When the newest trial of a half-open breaker began, if one is out: its outcome may let others through.
        trial_since: Option<Instant>,
    },
}

type Snapshot = Arc<[Arc<Worker>]>;

pub struct WorkerSet {
    params: WorkerParams,
    next_id: AtomicU64,
    /// Replaced as a whole at each change, so that readers hold the lock only to clone one pointer.
    workers: RwLock<Snapshot>,
    /// Changes of what workers serve.
    changes: Arc<AtomicU64>,
    /// Held from reading the loads to counting the choice: simultaneous requests see each other.
    selection: Mutex<Selection>,
}

/// What choices leave for the next ones, so that they need not look at every worker's description or allocate.
#[derive(Default)]
struct Selection {
    /// The count of changes that `pools` belong to.
    changes: u64,
    pools: Vec<Pool>,
    candidates: Vec<Candidate>,
}

/// Workers of one model and role, whatever their state, in the order of registration and so of their ids.
struct Pool {
    model: Option<String>,
    role: Role,
    workers: Snapshot,
}

/// What a policy would choose.
#[derive(Debug)]
pub struct Explained {
    /// Those that can take the request, each with its worker.
    pub candidates: Vec<(Arc<Worker>, Candidate)>,
    pub explanation: Explanation,
}

impl WorkerSet {
    pub fn new(params: WorkerParams) -> Self {
        Self {
            params,
            next_id: AtomicU64::new(1),
            workers: RwLock::new(Arc::from([])),
            changes: Arc::new(AtomicU64::new(1)),
            selection: Mutex::default(),
        }
    }

    /// Adds a worker in state loading. A URL may be added again while its former registration drains.
    pub fn add(&self, url: &str, info: WorkerInfo) -> Result<Arc<Worker>, AddWorkerError> {
        let mut workers = self.workers.write();
        let taken = workers
            .iter()
            .find(|worker| worker.url() == url && worker.state() != WorkerState::Draining);
        if let Some(taken) = taken {
            return Err(AddWorkerError {
                url: url.to_owned(),
                id: taken.id(),
            });
        }
        let id = WorkerId::new(self.next_id.fetch_add(1, Ordering::Relaxed));
        let worker = Arc::new(Worker::new(
            id,
            url.to_owned(),
            info,
            (self.params.health, self.params.breaker),
            Arc::clone(&self.changes),
        ));
        *workers = workers.iter().cloned().chain([Arc::clone(&worker)]).collect();
        self.changes.fetch_add(1, Ordering::Release);
        Ok(worker)
    }

    /// Takes a worker out at once. It drains: what is in flight goes on and is counted on the returned
    /// worker.
    pub fn remove(&self, id: WorkerId) -> Option<Arc<Worker>> {
        let mut workers = self.workers.write();
        let removed = workers.iter().find(|worker| worker.id() == id).cloned()?;
        removed.drain();
        *workers = workers
            .iter()
            .filter(|worker| worker.id() != id)
            .cloned()
            .collect();
        self.changes.fetch_add(1, Ordering::Release);
        Some(removed)
    }

    /// All workers, in the order of their registration, as they are now.
    pub fn list(&self) -> Arc<[Arc<Worker>]> {
        Arc::clone(&self.workers.read())
    }

    /// Workers in state ready that serve `model` (`None`: any).
    pub fn ready(&self, model: Option<&str>) -> Vec<Arc<Worker>> {
        self.list()
            .iter()
            .filter(|worker| worker.state() == WorkerState::Ready)
            .filter(|worker| model.is_none_or(|model| worker.info().serves(model)))
            .cloned()
            .collect()
    }

    /// Names of the models that workers serve, sorted.
    pub fn models(&self) -> Vec<String> {
        let names: BTreeSet<String> = self
            .list()
            .iter()
            .filter_map(|worker| worker.info().model.clone())
            .collect();
        names.into_iter().collect()
    }

    /// Chooses a worker by `policy` and counts the request on it, in one step as seen by other selections.
    pub fn select(
        &self,
        query: &Query<'_>,
        policy: &dyn Policy,
        rng: &mut dyn Rng,
    ) -> Result<LoadGuard, SelectError> {
        let selection = &mut *self.selection.lock();
        let pool = self.pool(query, selection)?;
        let candidates = &mut selection.candidates;
        let mut is_drawn = draw(&pool, query, policy, candidates, rng);
        if !is_drawn {
            collect(&pool, query, candidates);
        }
        loop {
            let Some(index) = policy.choose(&query.request, candidates, rng) else {
                if !std::mem::take(&mut is_drawn) {
                    return Err(unavailable(&pool, query));
                }
                collect(&pool, query, candidates);
                continue;
            };
            let chosen = candidates[index];
            let prefill_tokens = query.request.uncached_on(chosen.cached_tokens);
            let worker = &pool[chosen.position as usize];
            let guard = worker.begin(
                prefill_tokens,
                query.request.expected_output_tokens,
                query.request.now,
            );
            if let Some(guard) = guard {
                return Ok(guard);
            }
            // An outcome that was recorded since the filter has opened this breaker.
            candidates.remove(index);
        }
    }

    /// What [`Self::select`] would choose and why; nothing is counted or remembered.
    pub fn explain(
        &self,
        query: &Query<'_>,
        policy: &dyn Policy,
        rng: &mut dyn Rng,
    ) -> Result<Explained, SelectError> {
        let mut candidates = Vec::new();
        let pool = self.pool(query, &mut self.selection.lock())?;
        collect(&pool, query, &mut candidates);
        if candidates.is_empty() {
            return Err(unavailable(&pool, query));
        }
        let explanation = policy.explain(&query.request, &candidates, rng);
        let with_worker = |candidate: Candidate| (Arc::clone(&pool[candidate.position as usize]), candidate);
        Ok(Explained {
            candidates: candidates.into_iter().map(with_worker).collect(),
            explanation,
        })
    }

    /// Workers of the model and role, whatever their state.
    fn pool(&self, query: &Query<'_>, selection: &mut Selection) -> Result<Snapshot, SelectError> {
        let changes = self.changes.load(Ordering::Acquire);
        if selection.changes != changes {
            selection.pools.clear();
            selection.changes = changes;
        }
        let mut pools = selection.pools.iter();
        let known = pools.find(|pool| pool.role == query.role && pool.model.as_deref() == query.model);
        if let Some(pool) = known {
            return Ok(Arc::clone(&pool.workers));
        }
        let workers = self.list();
        let of_model: Vec<_> = workers
            .iter()
            .map(|worker| (worker, worker.info()))
            .filter(|(_, info)| query.model.is_none_or(|model| info.serves(model)))
            .collect();
        if of_model.is_empty()
            && let Some(model) = query.model
        {
            // While a worker has not said what it serves, nobody knows that the model is unknown.
            let silent = workers.iter().filter(|worker| worker.info().model.is_none());
            let silent: Snapshot = silent.cloned().collect();
            return match silent.is_empty() {
                false => Ok(silent),
                true => Err(SelectError::UnknownModel {
                    model: model.to_owned(),
                    known: self.models(),
                }),
            };
        }
        let of_role = of_model.iter().filter(|(_, info)| info.role == query.role);
        let pool = Pool {
            model: query.model.map(str::to_owned),
            role: query.role,
            workers: of_role.map(|(worker, _)| Arc::clone(worker)).collect(),
        };
        let workers = Arc::clone(&pool.workers);
        selection.pools.push(pool);
        Ok(workers)
    }
}

/// Tries to find as many candidates by chance as the policy would draw from all, so that a choice costs the same
/// whatever the number of workers. Returns whether it did.
fn draw(
    pool: &[Arc<Worker>],
    query: &Query<'_>,
    policy: &dyn Policy,
    candidates: &mut Vec<Candidate>,
    rng: &mut dyn Rng,
) -> bool {
    let drawn = policy.num_drawn().filter(|_| query.only.is_none());
    let Some(wanted) = drawn.filter(|wanted| wanted * DRAWS < pool.len()) else {
        return false;
    };
    candidates.clear();
    for _ in 0..wanted * DRAWS {
        let position = rng.random_range(0..pool.len());
        let worker = &pool[position];
        let is_held = candidates.iter().any(|held| held.worker == worker.id());
        if is_held || query.avoid.contains(&worker.id()) || !worker.is_available(query.request.now) {
            continue;
        }
        candidates.push(worker.candidate(position as u32));
        if candidates.len() == wanted {
            candidates.sort_unstable_by_key(|candidate| candidate.worker);
            note_cached(query, candidates);
            return true;
        }
    }
    false
}

/// Draws per candidate that is wanted; where most workers cannot take a request, all are looked at.
const DRAWS: usize = 4;

/// Those of the pool that can take the request, in its order.
fn collect(pool: &[Arc<Worker>], query: &Query<'_>, candidates: &mut Vec<Candidate>) {
    let is_asked_for = |id: WorkerId| query.only.is_none_or(|only| only == id);
    candidates.clear();
    let available = (0u32..)
        .zip(pool)
        .filter(|(_, worker)| is_asked_for(worker.id()) && worker.is_available(query.request.now));
    candidates.extend(available.map(|(position, worker)| worker.candidate(position)));
    let is_avoided = |candidate: &Candidate| query.avoid.contains(&candidate.worker);
    if !query.avoid.is_empty() && !candidates.iter().all(is_avoided) {
        candidates.retain(|candidate| !is_avoided(candidate));
    }
    note_cached(query, candidates);
}

/// `candidates` are in the order of their ids.
fn note_cached(query: &Query<'_>, candidates: &mut [Candidate]) {
    for (id, tokens) in query.cached {
        if let Ok(place) = candidates.binary_search_by_key(id, |candidate| candidate.worker) {
            candidates[place].cached_tokens = (*tokens).min(query.request.prompt_tokens);
        }
    }
}

fn unavailable(pool: &[Arc<Worker>], query: &Query<'_>) -> SelectError {
    let eligible = || {
        pool.iter()
            .filter(|worker| query.only.is_none_or(|only| only == worker.id()))
    };
    let count = |state| eligible().filter(|worker| worker.state() == state).count();
    let ready = || eligible().filter(|worker| worker.state() == WorkerState::Ready);
    let now = query.request.now;
    SelectError::Unavailable {
        role: query.role,
        loading: count(WorkerState::Loading),
        unhealthy: count(WorkerState::Unhealthy),
        draining: count(WorkerState::Draining),
        tripped: ready().count(),
        retry_after: ready().filter_map(|worker| worker.retry_after(now)).min(),
        trial_since: ready().filter_map(|worker| worker.trial_since()).max(),
    }
}

#[cfg(test)]
mod tests;
