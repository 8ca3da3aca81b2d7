//! One task per worker: probes it, learns what it serves, and keeps its state true.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use smg_engine_client::{EngineError, Health, StatusClass};
use smg_routing::{Probe, WorkerState};
use tokio::time::{Instant, error::Elapsed};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Fleet, Member, TokenizerSource,
    follow::{Follower, Following},
    proof::{Unproven, prove},
};
use crate::telemetry::Telemetry;

/// A worker whose last probe failed is looked at again after this.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// The same for a worker that did not come up in time, where no interval is set.
const LATE_INTERVAL: Duration = Duration::from_secs(10);

/// A worker that answers requests is probed all the same after so many times the interval: its own word on its health
/// counts as well.
const MOST_INTERVALS: u32 = 6;

/// The least time between the end of a probe and the next one, however often connections break.
const LEAST_PAUSE: Duration = Duration::from_millis(250);

/// When workers are probed.
#[derive(Clone, Copy)]
pub struct ProbeTimes {
    /// Between two probes of a healthy worker. `None`: it is not probed again.
    pub interval: Option<Duration>,
    pub timeout: Duration,
    /// Share by which chance makes a time between two probes shorter.
    pub jitter: f64,
    /// Whether a worker must generate a token before it gets requests.
    pub generates: bool,
    /// Between two looks at a worker that is not up yet.
    pub startup_interval: Duration,
    /// A worker that is not up after this long is looked at less often.
    pub startup_limit: Duration,
}

/// Everything that a worker's task needs.
pub(crate) struct Watch {
    pub fleet: Arc<Fleet>,
    pub member: Arc<Member>,
    pub times: ProbeTimes,
    pub source: TokenizerSource,
    pub telemetry: Telemetry,
    pub tasks: TaskTracker,
    pub knowledge: Knowledge,
    /// Whether what it caches is of use: a choice is made among several.
    pub follows: bool,
    /// Of what the process that was read last caches.
    pub following: Option<Following>,
}

/// How far what was read of a worker can be relied on. Only its task writes this; others ring the alarm.
#[derive(Default)]
pub(crate) struct Knowledge {
    /// When the process that it is about started, where that tells.
    start_time: Option<String>,
    doubts: Doubts,
}

/// What happened since it was read. Taken before the next reading begins, and put back if that fails.
#[derive(Clone, Copy, Default)]
struct Doubts {
    /// The worker may serve something else by now: it is read again at the next good probe.
    is_stale: bool,
    /// A connection to it ended: another process may answer now.
    broke: bool,
    /// A probe found nobody at its address.
    was_gone: bool,
}

impl Watch {
    /// Runs until `stop` fires, and then ends all that it began.
    pub async fn run(mut self, stop: CancellationToken) {
        self.keep_up(&stop).await;
        if let Some(following) = self.following.take() {
            following.end().await;
        }
    }

    async fn keep_up(&mut self, stop: &CancellationToken) {
        let started = Instant::now();
        let mut is_late = false;
        while let Some(mut wait) = stop.run_until_cancelled(self.look()).await {
            if self.member.served().is_none() && started.elapsed() >= self.times.startup_limit {
                wait = Some(self.times.interval.unwrap_or(LATE_INTERVAL));
                self.report_late(&mut is_late);
            }
            let wait = wait.map(|wait| self.times.jittered(wait));
            if stop.run_until_cancelled(self.pause(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Waits for the time of the next probe, or for a connection of a worker in service to end or a refusal of it.
    async fn pause(&self, wait: Option<Duration>) {
        if self.member.worker.state() != WorkerState::Ready {
            return sleep_or_never(wait).await;
        }
        let earliest = Instant::now() + LEAST_PAUSE;
        tokio::select! {
            () = self.member.alarm.heard() => tokio::time::sleep_until(earliest).await,
            () = self.idle_for(wait) => {}
        }
    }

    /// Returns when the worker has begun no answer for that long, or has gone without a probe for much longer.
    async fn idle_for(&self, wait: Option<Duration>) {
        let Some(wait) = wait else {
            return std::future::pending().await;
        };
        let began = Instant::now();
        let latest = began + wait * MOST_INTERVALS;
        let mut due = began + wait;
        loop {
            tokio::time::sleep_until(due).await;
            let answered = self.member.worker.last_answer();
            let next = answered
                .map_or(due, |at| Instant::from_std(at) + wait)
                .min(latest);
            if next <= due {
                return;
            }
            due = next;
        }
    }

    /// One probe and what follows from it. Returns the time to the next; `None`: only when asked.
    async fn look(&mut self) -> Option<Duration> {
        let (probe, words) = self.probe().await;
        self.telemetry.health_check(probe == Probe::Healthy);
        let probe = match probe {
            Probe::Healthy if self.must_load() => self.learn().await,
            other => {
                self.member.progress.store(Arc::new(words));
                other
            }
        };
        let worker = &self.member.worker;
        if let Some(state) = worker.observe(probe) {
            self.report(state);
            self.fleet.trials.wake();
        }
        if worker.state() != WorkerState::Ready {
            self.knowledge.doubts.is_stale = true;
        }
        match (worker.state(), probe) {
            (WorkerState::Ready, Probe::Healthy) => self.times.interval,
            (WorkerState::Loading, _) => Some(self.times.startup_interval),
            _ => Some(
                self.times
                    .interval
                    .map_or(RECHECK_INTERVAL, |interval| interval.min(RECHECK_INTERVAL)),
            ),
        }
    }

    async fn probe(&mut self) -> (Probe, String) {
        let mut broke = self.member.alarm.take();
        let mut answer = self.ask().await;
        if matches!(answer, Ok(Err(EngineError::Disconnected { .. }))) {
            // That was the old connection; a new one tells whether anybody is there.
            broke = true;
            answer = self.ask().await;
        }
        let doubts = &mut self.knowledge.doubts;
        doubts.is_stale |= broke;
        doubts.broke |= broke;
        let failed = if broke { Probe::Gone } else { Probe::Failed };
        match answer {
            Ok(Ok(health)) if health.healthy => (Probe::Healthy, "ready".to_owned()),
            // A worker that never served is still on its way, whatever it calls that.
            Ok(Ok(health)) => (self.unless_served(Probe::Failed), health.message),
            Ok(Err(error)) if is_loading(&error) => (Probe::Loading, error.message()),
            Ok(Err(error)) => {
                if !is_broken(&error) {
                    return (Probe::Failed, error.message());
                }
                *doubts = Doubts {
                    is_stale: true,
                    broke: true,
                    was_gone: true,
                };
                (failed, error.message())
            }
            Err(_) => (
                failed,
                format!("no answer to a probe within {:?}", self.times.timeout),
            ),
        }
    }

    async fn ask(&self) -> Result<Result<Health, EngineError>, Elapsed> {
        tokio::time::timeout(self.times.timeout, self.member.client.health()).await
    }

    fn unless_served(&self, probe: Probe) -> Probe {
        if self.member.served().is_some() {
            probe
        } else {
            Probe::Loading
        }
    }

    fn must_load(&self) -> bool {
        self.member.served().is_none() || self.knowledge.doubts.is_stale
    }

    /// Reads what the worker serves; a worker that cannot be read is not used.
    async fn learn(&mut self) -> Probe {
        let doubts = std::mem::take(&mut self.knowledge.doubts);
        match self.fleet.load(&self.member, &self.source, &self.tasks).await {
            Ok(start_time) => {
                if let Err(reason) = self.prove().await {
                    self.knowledge.doubts = Doubts {
                        is_stale: true,
                        ..doubts
                    };
                    self.refuse(&reason);
                    return Probe::Failed;
                }
                let is_other = self.knowledge.is_other_process(start_time);
                let lost_its_cache = is_other.unwrap_or(doubts.broke);
                if self.follows && (lost_its_cache || self.following.is_none()) {
                    self.follow().await;
                }
                if lost_its_cache {
                    // Its cache is empty, and so are its sessions.
                    self.fleet.prefixes.forget_sent(self.member.worker.id());
                    self.fleet.sessions.lose(self.member.worker.id());
                }
                if is_other == Some(true) || doubts.was_gone {
                    // Failures until then say nothing about who answers now.
                    self.member.worker.restarted();
                    self.fleet.trials.wake();
                }
                Probe::Healthy
            }
            Err(error) => {
                self.knowledge.doubts = Doubts {
                    is_stale: true,
                    ..doubts
                };
                self.refuse(&error.to_string());
                Probe::Failed
            }
        }
    }

    /// Has a worker that is not in service generate a token. One that is busy with those of others needs no proof.
    async fn prove(&self) -> Result<(), String> {
        let member = &self.member;
        let Some(served) = member.served().filter(|_| self.times.generates) else {
            return Ok(());
        };
        if member.worker.state() == WorkerState::Ready {
            return Ok(());
        }
        member.progress.store(Arc::new("generating a token".to_owned()));
        match prove(member, served.info.is_generation, self.times.timeout).await {
            Ok(()) | Err(Unproven::Full(_)) => {}
            Err(Unproven::Late(_)) if self.is_busy().await => {}
            Err(reason) => return Err(format!("its generation probe failed: {reason}")),
        }
        member.progress.store(Arc::new("ready".to_owned()));
        Ok(())
    }

    /// Whether it has requests besides the one of the probe.
    async fn is_busy(&self) -> bool {
        let loads = tokio::time::timeout(self.times.timeout, self.member.client.loads(&[])).await;
        let Ok(Ok(loads)) = loads else {
            return false;
        };
        loads.iter().map(|load| load.num_total_reqs).sum::<u32>() > 1
    }

    fn refuse(&self, reason: &str) {
        let url = self.member.worker.url();
        tracing::warn!(worker = url, reason, "worker cannot be used yet");
        self.member.progress.store(Arc::new(reason.to_owned()));
    }

    /// Begins anew with what the worker's present process caches.
    async fn follow(&mut self) {
        if let Some(following) = self.following.take() {
            following.end().await;
        }
        let follower = Follower {
            fleet: self.fleet.clone(),
            member: self.member.clone(),
        };
        self.following = Some(follower.start(&self.tasks));
    }

    fn report_late(&self, was_late: &mut bool) {
        let limit = self.times.startup_limit.as_secs();
        let words = format!(
            "not ready after {limit} s (--worker-startup-timeout-secs): {}",
            self.member.progress()
        );
        if !std::mem::replace(was_late, true) {
            tracing::error!(worker = self.member.worker.url(), "worker is {words}");
        }
        self.member.progress.store(Arc::new(words));
    }

    fn report(&self, state: WorkerState) {
        let url = self.member.worker.url();
        let progress = self.member.progress();
        let model = self
            .member
            .served()
            .map_or_else(String::new, |served| served.model.to_string());
        match state {
            WorkerState::Ready => tracing::info!(worker = url, model, "worker is ready"),
            _ => {
                tracing::warn!(worker = url, state = state.name(), reason = %progress, "worker left service")
            }
        }
    }
}

// === impl ProbeTimes ===

impl ProbeTimes {
    fn jittered(&self, wait: Duration) -> Duration {
        wait.mul_f64(rand::rng().random_range(1.0 - self.jitter..=1.0))
    }
}

// === impl Knowledge ===

impl Knowledge {
    /// Whether the process that was just read, which started then, is another one than before; `None` where it or
    /// the one before does not tell.
    fn is_other_process(&mut self, start_time: Option<String>) -> Option<bool> {
        let now = start_time?;
        let before = self.start_time.replace(now.clone());
        before.map(|before| before != now)
    }
}

/// The worker is there and says itself that it does not serve yet.
fn is_loading(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Status {
            class: StatusClass::Unavailable,
            ..
        }
    )
}

/// The connection is gone; who answers next may be another process.
fn is_broken(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Connect { .. } | EngineError::Disconnected { .. }
    )
}

async fn sleep_or_never(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait).await,
        None => std::future::pending().await,
    }
}
