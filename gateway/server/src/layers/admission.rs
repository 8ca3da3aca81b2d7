//! Bounds the generations that run and wait; a permit is held until the last byte of the answer left.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use smg_api::ApiError;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{
    sending::{HeldBody, Patience},
    trace::Arrived,
};
use crate::{
    context::Context,
    error::{Failure, RETRY_AFTER},
    telemetry::Telemetry,
};

/// After a request's time is up, its last words (the error event) have this long to leave.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Permits to run, and places to wait for one.
pub struct Admission {
    running: Option<Limit>,
    telemetry: Telemetry,
}

struct Limit {
    permits: Arc<Semaphore>,
    places: Semaphore,
    max_running: usize,
    max_waiting: usize,
    patience: Duration,
}

/// What an answer holds while it is being sent.
struct Held {
    _permit: Option<OwnedSemaphorePermit>,
    _request: TaskTrackerToken,
}

pub async fn layer(State(cx): State<Arc<Context>>, request: Request, next: Next) -> Response {
    // Taken before the check, so that the drain cannot miss a request that passed it.
    let token = cx.lifecycle.request();
    if cx.lifecycle.is_draining() {
        let error =
            ApiError::unavailable("the gateway is shutting down", RETRY_AFTER).with_code("shutting_down");
        return Failure(error).into_response();
    }
    let permit = match cx.admission.enter().await {
        Ok(permit) => permit,
        Err(failure) => return failure.into_response(),
    };
    let held = Held {
        _permit: permit,
        _request: token,
    };
    let arrived = Arrived::of(request.extensions());
    let response = next.run(request).await;
    let patience = Patience {
        until: cx.times.request.map(|limit| arrived + limit + LAST_WORDS),
        unread: cx.times.stall,
    };
    response.map(|inner| Body::new(HeldBody::new(inner, held, patience, &cx.tasks)))
}

// === impl Admission ===

impl Admission {
    /// `max_running` 0 = no limit.
    pub fn new(max_running: usize, max_waiting: usize, patience: Duration, telemetry: Telemetry) -> Self {
        let running = (max_running > 0).then(|| Limit {
            permits: Arc::new(Semaphore::new(max_running)),
            places: Semaphore::new(max_waiting),
            max_running,
            max_waiting,
            patience,
        });
        Self { running, telemetry }
    }

    async fn enter(&self) -> Result<Option<OwnedSemaphorePermit>, Failure> {
        let Some(limit) = &self.running else {
            return Ok(None);
        };
        if let Ok(permit) = limit.permits.clone().try_acquire_owned() {
            self.telemetry.rate_limit("allowed");
            return Ok(Some(permit));
        }
        let Ok(_place) = limit.places.try_acquire() else {
            self.telemetry.rate_limit("rejected");
            let message = format!(
                "{} requests are running and {} are waiting; the limits are --max-concurrent-requests and --queue-size",
                limit.max_running, limit.max_waiting
            );
            return Err(Failure(ApiError::rate_limited(message, RETRY_AFTER)));
        };
        match tokio::time::timeout(limit.patience, limit.permits.clone().acquire_owned()).await {
            Ok(Ok(permit)) => {
                self.telemetry.rate_limit("queued");
                Ok(Some(permit))
            }
            // The semaphore is never closed.
            Ok(Err(_)) => Ok(None),
            Err(_) => {
                self.telemetry.rate_limit("timed_out");
                let seconds = limit.patience.as_secs();
                let message =
                    format!("no request finished within {seconds} s of waiting (--queue-timeout-secs)");
                Err(Failure(
                    ApiError::unavailable(message, RETRY_AFTER).with_code("queue_timeout"),
                ))
            }
        }
    }

    /// Writes how full it is to the gauges.
    pub fn observe(&self) {
        let Some(limit) = &self.running else { return };
        let inflight = limit.max_running - limit.permits.available_permits();
        let waiting = limit.max_waiting - limit.places.available_permits();
        self.telemetry
            .gauge("smg_admission_inflight", Vec::new())
            .set(inflight as f64);
        self.telemetry
            .gauge("smg_admission_queue_depth", Vec::new())
            .set(waiting as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admission(max_running: usize, max_waiting: usize) -> Admission {
        Admission::new(
            max_running,
            max_waiting,
            Duration::from_secs(60),
            Telemetry::new().unwrap(),
        )
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_is_refused_at_once_and_a_long_wait_is_ended() {
        let admission = admission(1, 1);
        let _running = admission.enter().await.unwrap();
        let (first, second) = tokio::join!(admission.enter(), admission.enter());
        assert_eq!(first.unwrap_err().0.status, 503);
        let refused = second.unwrap_err().0;
        assert_eq!(
            (refused.status.as_u16(), refused.retry_after),
            (429, Some(RETRY_AFTER))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_gets_the_permit_that_becomes_free() {
        let admission = admission(1, 1);
        let running = admission.enter().await.unwrap();
        let (waited, ()) = tokio::join!(admission.enter(), async { drop(running) });
        assert!(waited.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_that_leaves_gives_its_place_back() {
        let admission = admission(1, 1);
        let _running = admission.enter().await.unwrap();
        let left = tokio::time::timeout(Duration::from_secs(1), admission.enter()).await;
        assert!(left.is_err());
        let (waited, refused) = tokio::join!(admission.enter(), admission.enter());
        assert_eq!(
            (
                waited.unwrap_err().0.status,
                refused.unwrap_err().0.status.as_u16()
            ),
            (http::StatusCode::SERVICE_UNAVAILABLE, 429)
        );
    }
}
