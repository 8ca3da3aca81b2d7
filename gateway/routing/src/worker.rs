//! One worker: what is known of it, its state, and the load that the gateway has put on it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use xxhash_rust::xxh3::xxh3_64;

use crate::breaker::{Breaker, BreakerParams, BreakerState, Outcome, Permit};
use crate::health::{Health, HealthParams, Probe, WorkerState};
use crate::load::{Counters, LoadReport, OwnLoad, PrefillRate};
use crate::policy::{Candidate, DEFAULT_PRIORITY};

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
    /// Hash of the URL.
    key: u64,
    health: Mutex<Health>,
    breaker: Mutex<Breaker>,
    load: Counters,
    prefill_rate: PrefillRate,
    /// When it last began an answer.
    answered: Mutex<Option<Instant>>,
    /// What the locks hold, for choices: whether the state is ready, and whether the breaker is closed. Written under
    /// the lock of what each mirrors.
    is_ready: AtomicBool,
    is_closed: AtomicBool,
    priority: AtomicU32,
    /// Bits of an `f32`.
    cost: AtomicU32,
    /// Counts the changes of what any worker of the set serves.
    changes: Arc<AtomicU64>,
}

impl Worker {
    pub(crate) fn new(
        id: WorkerId,
        url: String,
        info: WorkerInfo,
        (health, breaker): (HealthParams, BreakerParams),
        changes: Arc<AtomicU64>,
    ) -> Self {
        let worker = Self {
            id,
            key: xxh3_64(url.as_bytes()),
            url,
            info: RwLock::default(),
            health: Mutex::new(Health::new(health)),
            breaker: Mutex::new(Breaker::new(breaker)),
            load: Counters::default(),
            prefill_rate: PrefillRate::default(),
            answered: Mutex::default(),
            is_ready: AtomicBool::new(false),
            is_closed: AtomicBool::new(true),
            priority: AtomicU32::new(DEFAULT_PRIORITY),
            cost: AtomicU32::new(1f32.to_bits()),
            changes,
        };
        worker.set_info(info);
        worker
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
        let mut held = self.info.write();
        self.priority.store(info.priority(), Ordering::Relaxed);
        self.cost.store(info.cost().to_bits(), Ordering::Relaxed);
        *held = Arc::new(info);
        self.changes.fetch_add(1, Ordering::Release);
    }

    pub fn state(&self) -> WorkerState {
        self.health.lock().state()
    }

    /// Takes in a probe result; returns the new state if it changed.
    pub fn observe(&self, probe: Probe) -> Option<WorkerState> {
        self.with_health(|health| health.observe(probe))
    }

    /// Lets no new request in. Those in flight are not touched.
    pub fn drain(&self) -> Option<WorkerState> {
        self.with_health(Health::drain)
    }

    fn with_health<T>(&self, change: impl FnOnce(&mut Health) -> T) -> T {
        let mut health = self.health.lock();
        let result = change(&mut health);
        self.is_ready
            .store(health.state() == WorkerState::Ready, Ordering::Release);
        result
    }

    fn with_breaker<T>(&self, change: impl FnOnce(&mut Breaker) -> T) -> T {
        let mut breaker = self.breaker.lock();
        let result = change(&mut breaker);
        self.is_closed.store(breaker.is_closed(), Ordering::Release);
        result
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
        self.is_ready.load(Ordering::Acquire)
            && (self.is_closed.load(Ordering::Acquire) || self.breaker.lock().allows(now))
    }

    /// Closes the breaker and forgets what was learned of the load: another process listens at the worker's address
    /// now.
    pub fn restarted(&self) {
        self.with_breaker(Breaker::reset);
        self.load.set_report(None);
        self.prefill_rate.forget();
        *self.answered.lock() = None;
    }

    /// When its present process last began to answer a request, if it did.
    pub fn last_answer(&self) -> Option<Instant> {
        *self.answered.lock()
    }

    /// Of workers that are equally good, the one with the highest priority is taken.
    pub fn priority(&self) -> u32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Weight of waiting at this worker.
    pub fn cost(&self) -> f32 {
        f32::from_bits(self.cost.load(Ordering::Relaxed))
    }

    /// Requests selected for this worker and not finished.
    pub fn running_requests(&self) -> usize {
        self.load.own().requests
    }

    /// Tokens selected for this worker that it has still to compute or to generate.
    pub fn pending_tokens(&self) -> usize {
        self.load.own().pending_tokens()
    }

    /// Takes in what the worker says of its load. It counts from `report.at` on, for [`crate::REPORT_LIFETIME`].
    pub fn report(&self, report: LoadReport) {
        self.load.set_report(Some(report));
    }

    /// Takes in that the worker computed `tokens` of prompts within `elapsed`. Answers that begin are measured
    /// without this; it is for what a worker tells of itself.
    pub fn measure_prefill(&self, tokens: usize, elapsed: Duration) {
        self.prefill_rate.measure(tokens, elapsed);
    }

    /// Tokens of prompts per second; `None` until measured.
    pub fn prefill_rate(&self) -> Option<f32> {
        self.prefill_rate.get()
    }

    /// The worker as a policy sees it, without what depends on the request.
    pub(crate) fn candidate(&self, position: u32) -> Candidate {
        let own = self.load.own();
        Candidate {
            position,
            own,
            report: self.load.report(own),
            prefill_rate: self.prefill_rate.get(),
            priority: self.priority(),
            cost: self.cost(),
            ..Candidate::new(self.id, self.key)
        }
    }

    /// Counts a request on this worker, which has to compute `prefill_tokens` of its prompt and is expected to
    /// generate `output_tokens`; `None` if its breaker lets none through at `now`.
    pub fn begin(
        self: &Arc<Self>,
        prefill_tokens: usize,
        output_tokens: usize,
        now: Instant,
    ) -> Option<LoadGuard> {
        let permit = self.with_breaker(|breaker| breaker.acquire(now))?;
        let load = OwnLoad {
            requests: 1,
            prefill_tokens,
            output_tokens,
        };
        self.load.add(load);
        Some(LoadGuard {
            worker: Arc::clone(self),
            load,
            ahead: self.load.own().prefill_tokens,
            since: now,
            permit: Some(permit),
        })
    }
}

/// Largest and smallest weight that a worker's label `cost` can give it.
pub const COSTS: std::ops::RangeInclusive<f32> = 0.001..=1000.0;

impl WorkerInfo {
    /// The label `priority`, a whole number.
    fn priority(&self) -> u32 {
        let label = self.labels.get("priority");
        label
            .and_then(|text| text.trim().parse().ok())
            .unwrap_or(DEFAULT_PRIORITY)
    }

    /// The label `cost`, a number from 0.001 to 1000.
    fn cost(&self) -> f32 {
        let label = self.labels.get("cost").and_then(|text| text.trim().parse().ok());
        label.filter(|cost| COSTS.contains(cost)).unwrap_or(1.0)
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
    /// What it counts as.
    load: OwnLoad,
    /// Uncached prompt tokens that the worker had to compute up to the end of this prompt, those of others included.
    ahead: usize,
    since: Instant,
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

    /// Notes that the worker answers the request: its prompt is computed and is load no longer. Returns whether this
    /// was the trial of a half-open breaker, which has succeeded with that: others may go to the worker now.
    pub fn settle(&mut self, now: Instant) -> bool {
        *self.worker.answered.lock() = Some(now);
        let prefill = OwnLoad {
            prefill_tokens: std::mem::take(&mut self.load.prefill_tokens),
            ..OwnLoad::default()
        };
        if prefill.prefill_tokens > 0 {
            self.worker.load.subtract(prefill);
            let elapsed = now.saturating_duration_since(self.since);
            self.worker.prefill_rate.measure(self.ahead, elapsed);
        }
        let permit = self.permit.as_mut();
        permit.is_some_and(|permit| self.worker.with_breaker(|breaker| breaker.settle(permit)))
    }

    /// Tells the breaker how the request went. Only the first call counts; dropped without one, the request
    /// is no evidence for or against the worker.
    pub fn record(&mut self, outcome: Outcome, now: Instant) {
        if let Some(permit) = self.permit.take() {
            self.worker
                .with_breaker(|breaker| breaker.record(permit, outcome, now));
        }
    }
}

impl Drop for LoadGuard {
    fn drop(&mut self) {
        self.worker.load.subtract(self.load);
        if let Some(permit) = self.permit.take() {
            self.worker.with_breaker(|breaker| breaker.release(permit));
        }
    }
}
