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

/// Wakes them when a request leaves its worker. Dropped after the request's guard, which holds the outcome.
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
        prompt: &Routable<'_>,
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
