//! One worker: what is known of it, its state, and the load that the gateway has put on it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use crate::breaker::{Breaker, BreakerParams, BreakerState, Outcome, Permit};
use crate::health::{Health, HealthParams, Probe, WorkerState};

/// Names one registration of a worker. A URL that is removed and added again gets a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkerId(u64);

impl WorkerId {
    pub fn new(number: u64) -> Self {
        Self(number)
    }

    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    #[default]
    Regular,
    Prefill,
    Decode,
}

impl Role {
    pub fn name(self) -> &'static str {
        match self {
            Self::Regular => "regular",
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }
}

/// What a worker says about itself. It is learned after the worker was added and may change with a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkerInfo {
    /// `None` until the worker has been asked.
    pub model: Option<String>,
    pub role: Role,
    pub labels: BTreeMap<String, String>,
}

impl WorkerInfo {
    pub fn serves(&self, model: &str) -> bool {
        self.model.as_deref() == Some(model)
    }
}

pub struct Worker {
    id: WorkerId,
    url: String,
    info: RwLock<Arc<WorkerInfo>>,
    health: Mutex<Health>,
    breaker: Mutex<Breaker>,
    running_requests: AtomicUsize,
    pending_tokens: AtomicUsize,
}

impl Worker {
    pub(crate) fn new(
        id: WorkerId,
        url: String,
        info: WorkerInfo,
        health: HealthParams,
        breaker: BreakerParams,
    ) -> Self {
        Self {
            id,
            url,
            info: RwLock::new(Arc::new(info)),
            health: Mutex::new(Health::new(health)),
            breaker: Mutex::new(Breaker::new(breaker)),
            running_requests: AtomicUsize::new(0),
            pending_tokens: AtomicUsize::new(0),
        }
    }

    pub fn id(&self) -> WorkerId {
        self.id
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn info(&self) -> Arc<WorkerInfo> {
        Arc::clone(&self.info.read())
    }

    pub fn set_info(&self, info: WorkerInfo) {
        *self.info.write() = Arc::new(info);
    }

    pub fn state(&self) -> WorkerState {
        self.health.lock().state()
    }

    /// Takes in a probe result; returns the new state if it changed.
    pub fn observe(&self, probe: Probe) -> Option<WorkerState> {
        self.health.lock().observe(probe)
    }

    /// Lets no new request in. Those in flight are not touched.
    pub fn drain(&self) -> Option<WorkerState> {
        self.health.lock().drain()
    }

    pub fn consecutive_failures(&self) -> u32 {
        self.health.lock().consecutive_failures()
    }

    pub fn breaker_state(&self, now: Instant) -> BreakerState {
        self.breaker.lock().state(now)
    }

    /// Time until the breaker lets a request through; `None` if it does now.
    pub fn retry_after(&self, now: Instant) -> Option<Duration> {
        self.breaker.lock().retry_after(now)
    }

    /// Since when the outcome of a half-open breaker's one trial is awaited.
    pub fn trial_since(&self) -> Option<Instant> {
        self.breaker.lock().trial_since()
    }

    /// Whether a request may be sent at `now`: ready, and the breaker allows it.
    pub fn is_available(&self, now: Instant) -> bool {
        self.state() == WorkerState::Ready && self.breaker.lock().allows(now)
    }

    /// Closes the breaker: another process listens at the worker's address now.
    pub fn restarted(&self) {
        self.breaker.lock().reset();
    }

    /// Requests selected for this worker and not finished.
    pub fn running_requests(&self) -> usize {
        self.running_requests.load(Ordering::Relaxed)
    }

    /// Tokens selected for this worker and not finished.
    pub fn pending_tokens(&self) -> usize {
        self.pending_tokens.load(Ordering::Relaxed)
    }

    /// Counts a request of `tokens` on this worker, or `None` if its breaker lets none through at `now`.
    pub fn begin(self: &Arc<Self>, tokens: usize, now: Instant) -> Option<LoadGuard> {
        let permit = self.breaker.lock().acquire(now)?;
        self.running_requests.fetch_add(1, Ordering::Relaxed);
        self.pending_tokens.fetch_add(tokens, Ordering::Relaxed);
        Some(LoadGuard {
            worker: Arc::clone(self),
            tokens,
            permit: Some(permit),
        })
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("id", &self.id)
            .field("url", &self.url)
            .field("state", &self.state())
            .field("running_requests", &self.running_requests())
            .field("pending_tokens", &self.pending_tokens())
            .finish()
    }
}

/// One request on one worker, counted from selection until this is dropped. It keeps the worker's counters
/// alive, so a worker removed meanwhile (and one added under the same URL) is not disturbed.
#[derive(Debug)]
pub struct LoadGuard {
    worker: Arc<Worker>,
    tokens: usize,
    permit: Option<Permit>,
}

impl LoadGuard {
    pub fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Whether the request tried a half-open breaker and its outcome is not known yet.
    pub fn is_trial(&self) -> bool {
        self.permit.as_ref().is_some_and(Permit::is_trial)
    }

    /// Tells the breaker that the worker answers the request. Returns whether this was a trial, which has succeeded
    /// with that: others may go to the worker now.
    pub fn settle(&mut self) -> bool {
        let permit = self.permit.as_mut();
        permit.is_some_and(|permit| self.worker.breaker.lock().settle(permit))
    }

    /// Tells the breaker how the request went. Only the first call counts; dropped without one, the request
    /// is no evidence for or against the worker.
    pub fn record(&mut self, outcome: Outcome, now: Instant) {
        if let Some(permit) = self.permit.take() {
            self.worker.breaker.lock().record(permit, outcome, now);
        }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.worker.running_requests.fetch_sub(1, Ordering::Relaxed);
        self.worker
            .pending_tokens
            .fetch_sub(self.tokens, Ordering::Relaxed);
        if let Some(permit) = self.permit.take() {
            self.worker.breaker.lock().release(permit);
        }
    }
}
