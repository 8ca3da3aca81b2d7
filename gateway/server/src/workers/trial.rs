//! Requests that find every worker's breaker half-open, with its one trial out, wait for the outcome: then they go,
//! or are refused together.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant as StdInstant},
};

use smg_routing::{SelectError, WorkerId};
use tokio::{
    sync::{Notify, Semaphore},
    time::Instant,
};

use super::{Chosen, Fleet, Routable};
use crate::error::Failure;

/// A trial that has been out for this long is not waited for.
const TRIAL_LIMIT: Duration = Duration::from_secs(10);

/// Requests that wait at once; who comes later is refused.
const MAX_WAITING: usize = 256;

/// Those who wait, and what wakes them.
pub struct Trials {
    changed: Notify,
    places: Semaphore,
}

/// Wakes them when the request of a trial leaves its worker: no other changes what they wait for. Dropped after the
/// request's guard, which holds the outcome.
pub struct WakeOnDrop(pub Arc<Trials>);

/// Why no worker was chosen.
#[derive(Debug)]
pub struct Unchosen {
    pub failure: Failure,
    /// Until when the outcome of a trial may change that.
    waits_until: Option<Instant>,
}

// === impl Trials ===

impl Default for Trials {
    fn default() -> Self {
        Self {
            changed: Notify::new(),
            places: Semaphore::new(MAX_WAITING),
        }
    }
}

impl Trials {
    /// The state of a worker may let requests through now, or no longer.
    pub fn wake(&self) {
        self.changed.notify_waiters();
    }
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        self.0.wake();
    }
}

// === impl Unchosen ===

impl Unchosen {
    pub fn new(error: SelectError, now: StdInstant) -> Self {
        let waits_until = match &error {
            SelectError::Unavailable {
                trial_since: Some(since),
                retry_after,
                ..
            } => {
                let end = *since + TRIAL_LIMIT;
                // A trial that says nothing for a whole timeout makes room for the next one.
                let next = retry_after.map(|wait| now + wait);
                Some(next.map_or(end, |next| end.min(next))).filter(|end| *end > now)
            }
            _ => None,
        };
        Self {
            failure: error.into(),
            waits_until: waits_until.map(Instant::from_std),
        }
    }

    /// Whether to wait may help.
    pub fn awaits_trial(&self) -> bool {
        self.waits_until.is_some()
    }
}

impl From<Failure> for Unchosen {
    fn from(failure: Failure) -> Self {
        Self {
            failure,
            waits_until: None,
        }
    }
}

impl From<Unchosen> for Failure {
    fn from(unchosen: Unchosen) -> Self {
        unchosen.failure
    }
}

// === impl Fleet ===

impl Fleet {
    /// Chooses a worker like [`Self::choose`], after the outcome of a trial if that is what is missing; at the latest
    /// at the request's `deadline`.
    pub async fn choose_in_turn(
        &self,
        model: &str,
        prompt: &Routable,
        avoid: &[WorkerId],
        deadline: Option<Instant>,
    ) -> Result<Chosen, Failure> {
        let mut place = None;
        loop {
            let mut changed = pin!(self.trials.changed.notified());
            // Before the choice, so that no outcome falls between the two.
            changed.as_mut().enable();
            let unchosen = match self.choose(model, prompt, avoid) {
                Ok(chosen) => return Ok(chosen),
                Err(unchosen) => unchosen,
            };
            let end = unchosen
                .waits_until
                .map(|end| deadline.map_or(end, |deadline| end.min(deadline)));
            let Some(end) = end.filter(|end| *end > Instant::now()) else {
                return Err(unchosen.failure);
            };
            if place.is_none() {
                place = self.trials.places.try_acquire().ok();
            }
            if place.is_none() {
                return Err(unchosen.failure);
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(end) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::FutureExt;
    use smg_engine_client::{Address, EngineClient};
    use smg_routing::{
        BreakerParams, Candidate, Outcome, Policy, Probe, RouteRequest, Verdict, WorkerInfo, WorkerParams,
        WorkerSet,
    };
    use smg_simulator::MemoryNetwork;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::workers::Alarm;
    use crate::workers::{Policies, Prefixes};

    const MODEL: &str = "demo";
    const OPEN: Duration = Duration::from_secs(60);

    /// The first worker, and how often somebody asked for one.
    struct First(Arc<AtomicUsize>);

    impl Policy for First {
        fn name(&self) -> &'static str {
            "first"
        }

        fn pick(&self, _: &RouteRequest, candidates: &[Candidate], _: &mut dyn rand::Rng) -> Option<usize> {
            self.0.fetch_add(1, Ordering::Relaxed);
            (!candidates.is_empty()).then_some(0)
        }

        fn verdicts(&self, _: &RouteRequest, _: &[Candidate]) -> Vec<Verdict> {
            Vec::new()
        }
    }

    fn choose(fleet: &Fleet) -> Chosen {
        let chosen = fleet.choose(MODEL, &Routable::new(&[1; 64], 63, "", 1), &[]);
        chosen.unwrap_or_else(|unchosen| panic!("{unchosen:?}"))
    }

    /// One worker that opens its breaker at the first failure.
    fn fleet(asked: &Arc<AtomicUsize>) -> Fleet {
        let params = WorkerParams {
            breaker: BreakerParams {
                failure_threshold: 1,
                success_threshold: 2,
                timeout: OPEN,
                ..BreakerParams::default()
            },
            ..WorkerParams::default()
        };
        let policies = Policies::only(Arc::new(First(asked.clone())));
        let fleet = Fleet::new(WorkerSet::new(params), policies, Prefixes::new(1 << 20, 100));
        let address = Address::Unix("/run/worker.sock".into());
        let client = EngineClient::new(address, Arc::new(MemoryNetwork::new()), TaskTracker::new());
        let member = fleet
            .add("unix:///run/worker.sock", client, Arc::<Alarm>::default())
            .unwrap();
        member.worker.set_info(WorkerInfo {
            model: Some(MODEL.to_owned()),
            ..WorkerInfo::default()
        });
        member.worker.observe(Probe::Healthy);
        fleet
    }

    #[tokio::test(start_paused = true)]
    async fn those_who_wait_are_woken_by_trials_alone() {
        let asked = Arc::new(AtomicUsize::new(0));
        let fleet = fleet(&asked);
        let ordinary: Vec<Chosen> = (0..10).map(|_| choose(&fleet)).collect();
        choose(&fleet)
            .guard
            .record(Outcome::ServerError, Instant::now().into_std());
        tokio::time::sleep(OPEN).await;
        let mut trial = choose(&fleet);

        let prompt = Routable::new(&[2; 64], 63, "", 1);
        let mut waiting = pin!(fleet.choose_in_turn(MODEL, &prompt, &[], None));
        assert!(waiting.as_mut().now_or_never().is_none());
        let before = asked.load(Ordering::Relaxed);
        for mut left in ordinary {
            left.settle();
            left.guard.record(Outcome::Answered, Instant::now().into_std());
            drop(left);
            assert!(waiting.as_mut().now_or_never().is_none());
        }
        assert_eq!(asked.load(Ordering::Relaxed), before);

        trial.settle();
        let next = waiting
            .as_mut()
            .now_or_never()
            .expect("room for the next trial")
            .unwrap();
        assert_eq!(asked.load(Ordering::Relaxed), before + 1);

        // A trial that is left without outcome makes room too.
        let mut waiting = pin!(fleet.choose_in_turn(MODEL, &prompt, &[], None));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(next);
        assert!(
            waiting
                .as_mut()
                .now_or_never()
                .is_some_and(|chosen| chosen.is_ok())
        );
    }
}
