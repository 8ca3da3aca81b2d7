//! All workers of a gateway, shared between its tasks, and the selection of one for a request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rand::Rng;

use crate::breaker::BreakerParams;
use crate::health::{HealthParams, WorkerState};
use crate::policy::{Candidate, Policy, RouteRequest};
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
    pub now: Instant,
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
    /// Held from reading the loads to counting the choice: simultaneous requests see each other.
    selection: Mutex<()>,
}

impl WorkerSet {
    pub fn new(params: WorkerParams) -> Self {
        Self {
            params,
            next_id: AtomicU64::new(1),
            workers: RwLock::new(Arc::from([])),
            selection: Mutex::new(()),
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
            self.params.health,
            self.params.breaker,
        ));
        *workers = workers.iter().cloned().chain([Arc::clone(&worker)]).collect();
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
        let eligible = self.eligible(query)?;
        let _selecting = self.selection.lock();
        let mut available: Vec<&Arc<Worker>> = eligible
            .iter()
            .filter(|worker| worker.is_available(query.now))
            .collect();
        if available.iter().any(|worker| !query.avoid.contains(&worker.id())) {
            available.retain(|worker| !query.avoid.contains(&worker.id()));
        }
        let mut candidates: Vec<Candidate> =
            available.iter().map(|worker| candidate(worker, query)).collect();
        while let Some(index) = policy.choose(&query.request, &candidates, rng) {
            let tokens = query.request.work_on(candidates[index].cached_tokens);
            if let Some(guard) = available[index].begin(tokens, query.now) {
                return Ok(guard);
            }
            // An outcome that was recorded since the filter has opened this breaker.
            available.remove(index);
            candidates.remove(index);
        }
        Err(unavailable(&eligible, query))
    }

    /// Workers of the model and role, whatever their state.
    fn eligible(&self, query: &Query<'_>) -> Result<Vec<Arc<Worker>>, SelectError> {
        let workers = self.list();
        let mut of_model = false;
        let mut unknown_yet = false;
        let mut eligible = Vec::with_capacity(workers.len());
        for worker in workers.iter() {
            let info = worker.info();
            unknown_yet |= info.model.is_none();
            if query.model.is_none_or(|model| info.serves(model)) {
                of_model = true;
                if info.role == query.role && query.only.is_none_or(|only| only == worker.id()) {
                    eligible.push(Arc::clone(worker));
                }
            }
        }
        match query.model {
            // While a worker has not said what it serves, nobody knows that the model is unknown.
            Some(_) if !of_model && unknown_yet => Ok(workers
                .iter()
                .filter(|worker| worker.info().model.is_none())
                .cloned()
                .collect()),
            Some(model) if !of_model => Err(SelectError::UnknownModel {
                model: model.to_owned(),
                known: self.models(),
            }),
            _ => Ok(eligible),
        }
    }
}

fn candidate(worker: &Worker, query: &Query<'_>) -> Candidate {
    let cached = query
        .cached
        .iter()
        .find(|(id, _)| *id == worker.id())
        .map_or(0, |(_, tokens)| *tokens);
    Candidate {
        worker: worker.id(),
        cached_tokens: cached.min(query.request.prompt_tokens),
        running_requests: worker.running_requests(),
        pending_tokens: worker.pending_tokens(),
    }
}

fn unavailable(eligible: &[Arc<Worker>], query: &Query<'_>) -> SelectError {
    let count = |state| eligible.iter().filter(|worker| worker.state() == state).count();
    let ready = || {
        eligible
            .iter()
            .filter(|worker| worker.state() == WorkerState::Ready)
    };
    SelectError::Unavailable {
        role: query.role,
        loading: count(WorkerState::Loading),
        unhealthy: count(WorkerState::Unhealthy),
        draining: count(WorkerState::Draining),
        tripped: ready().count(),
        retry_after: ready().filter_map(|worker| worker.retry_after(query.now)).min(),
        trial_since: ready().filter_map(|worker| worker.trial_since()).max(),
    }
}

#[cfg(test)]
mod tests;
