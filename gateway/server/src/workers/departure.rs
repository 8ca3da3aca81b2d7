//! How a worker is left: no new request goes there, those that run may end, and after a time they are ended.

use tokio::{sync::watch, time::Instant};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

pub struct Departure {
    /// It is to go.
    begun: CancellationToken,
    /// Its time is over.
    over: CancellationToken,
    /// Requests that run on it.
    running: TaskTracker,
    until: watch::Sender<Instant>,
}

impl Default for Departure {
    fn default() -> Self {
        Self {
            begun: CancellationToken::new(),
            over: CancellationToken::new(),
            running: TaskTracker::new(),
            until: watch::Sender::new(Instant::now()),
        }
    }
}

impl Departure {
    /// Counts a request until the token is dropped.
    pub fn request(&self) -> TaskTrackerToken {
        self.running.token()
    }

    /// Requests may run until then. A later call changes the time.
    pub fn begin(&self, until: Instant) {
        self.until.send_replace(until);
        self.begun.cancel();
    }

    pub fn has_begun(&self) -> bool {
        self.begun.is_cancelled()
    }

    /// Fires when the worker is to go.
    pub fn begun(&self) -> CancellationToken {
        self.begun.clone()
    }

    /// Fires when its time is over: requests that still run there have to end.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Returns when no request runs there, or the time is over. Only after [`Self::begin`].
    pub async fn finished(&self) {
        self.running.close();
        let mut changes = self.until.subscribe();
        loop {
            let until = *changes.borrow_and_update();
            tokio::select! {
                biased;
                () = self.running.wait() => break,
                () = tokio::time::sleep_until(until) => break,
                // The sender is here, so that it cannot be gone.
                _ = changes.changed() => {}
            }
        }
        self.over.cancel();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_is_finished_with_the_last_request_or_when_the_time_is_over() {
        let start = Instant::now();
        let departure = Departure::default();
        let request = departure.request();
        departure.begin(start + Duration::from_secs(60));
        let leave = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            drop(request);
        };
        tokio::join!(departure.finished(), leave);
        assert_eq!(start.elapsed(), Duration::from_secs(5));

        let start = Instant::now();
        let departure = Departure::default();
        let _request = departure.request();
        departure.begin(start + Duration::from_secs(60));
        let hurry = async {
            tokio::time::sleep(Duration::from_secs(5)).await;
            departure.begin(start + Duration::from_secs(10));
        };
        tokio::join!(departure.finished(), hurry);
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        assert!(departure.over().is_cancelled());
    }
}
