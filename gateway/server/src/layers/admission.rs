//! Bounds the generations that run and wait, and what each tenant may use; a permit is held until the last byte of the
//! answer left.

mod asking;
mod turnstile;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use axum::{
    body::Body,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use smg_admission::{Ask, GateParams, Limits, Rate, Reason};
use smg_api::ApiError;
use smg_config::{GatewayConfig, TenantLimits};
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::{
    asking::{Asking, tenant_of},
    turnstile::{NotAdmitted, Permit, Turnstile, Why},
};
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
    asking: Asking,
    turnstile: Turnstile,
    /// For messages.
    max_running: usize,
    max_waiting: usize,
    patience: Duration,
    rate: u64,
    telemetry: Telemetry,
}

/// The tokens that an answer has cost so far, as an extension of the response. Clones share them.
#[derive(Clone, Default)]
pub struct Spent(Arc<AtomicU64>);

/// What an answer holds while it is being sent.
struct Held {
    permit: Permit,
    /// `None`: the answer tells no cost.
    spent: Option<Spent>,
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
    let ask = match cx.admission.asking.ask(&request) {
        Ok(ask) => ask,
        Err(failure) => return failure.into_response(),
    };
    let permit = match cx.admission.enter(ask).await {
        Ok(permit) => permit,
        Err(failure) => return failure.into_response(),
    };
    let arrived = Arrived::of(request.extensions());
    let mut response = next.run(request).await;
    let held = Held {
        permit,
        spent: cost(&mut response),
        _request: token,
    };
    let patience = Patience {
        until: cx.times.request.map(|limit| arrived + limit + LAST_WORDS),
        unread: cx.times.stall,
    };
    response.map(|inner| Body::new(HeldBody::new(inner, held, patience, &cx.tasks)))
}

/// A request that failed before it had an answer cost nothing.
fn cost(response: &mut Response) -> Option<Spent> {
    let told = response.extensions_mut().remove();
    told.or_else(|| (!response.status().is_success()).then(Spent::default))
}

// === impl Admission ===

impl Admission {
    pub fn new(config: &GatewayConfig, cores: usize, telemetry: Telemetry) -> Self {
        let (requests, options) = (&config.requests, &config.limits);
        let max_running = requests.concurrency_limit(cores);
        let rate = options.rate_limit_tokens_per_second.map(|per_second| Rate {
            per_second,
            burst: max_running.map_or(per_second, |limit| limit as u64),
        });
        let of_tenants = options.limits_of_tenants().into_iter();
        let params = GateParams {
            max_running,
            max_waiting: requests.queue_size,
            patience: requests.queue_timeout(),
            rate,
            limits: limits_of(options.default_limits()),
            of_tenants: of_tenants
                .map(|(key, limits)| (tenant_of(&key), limits_of(limits)))
                .collect(),
        };
        Self {
            asking: Asking::new(options),
            turnstile: Turnstile::new(params),
            max_running: max_running.unwrap_or(usize::MAX),
            max_waiting: requests.queue_size,
            patience: requests.queue_timeout(),
            rate: options.rate_limit_tokens_per_second.unwrap_or(0),
            telemetry,
        }
    }

    async fn enter(&self, ask: Ask) -> Result<Permit, Failure> {
        match self.turnstile.enter(ask).await {
            Ok((permit, None)) => {
                self.telemetry.rate_limit("allowed");
                Ok(permit)
            }
            Ok((permit, Some(waited))) => {
                self.telemetry.rate_limit("queued");
                self.telemetry.admitted_late(ask.class.name(), waited);
                Ok(permit)
            }
            Err(refusal) => Err(self.refused(&refusal)),
        }
    }

    fn refused(&self, refusal: &NotAdmitted) -> Failure {
        let result = match refusal.why {
            Why::TimedOut => "timed_out",
            Why::Displaced | Why::Refused(_) => "rejected",
        };
        self.telemetry.rate_limit(result);
        self.telemetry.not_admitted(reason(&refusal.why));
        let message = self.message(&refusal.why);
        let retry_after = whole_seconds(refusal.retry_after);
        let error = match refusal.why {
            Why::TimedOut => ApiError::unavailable(message, retry_after).with_code("queue_timeout"),
            Why::Displaced | Why::Refused(Reason::Full | Reason::Rate) => {
                ApiError::rate_limited(message, retry_after)
            }
            Why::Refused(Reason::TenantRequests | Reason::TenantTokens | Reason::TenantRunning) => {
                ApiError::rate_limited(message, retry_after).with_code("tenant_rate_limit_exceeded")
            }
        };
        Failure(error)
    }

    fn message(&self, why: &Why) -> String {
        let (running, waiting) = (self.max_running, self.max_waiting);
        match why {
            Why::Refused(Reason::Full) => format!(
                "{running} requests are running and {waiting} are waiting; the limits are --max-concurrent-requests and \
                 --queue-size"
            ),
            Why::Refused(Reason::Rate) => format!(
                "more than {} requests a second came together (--rate-limit-tokens-per-second)",
                self.rate
            ),
            Why::Refused(Reason::TenantRequests) => {
                "your requests of this minute are used up (--tenant-requests-per-minute or \
                 --tenant-rate-limit-config)"
                    .to_owned()
            }
            Why::Refused(Reason::TenantTokens) => {
                "your tokens of this minute are used up (--tenant-tokens-per-minute or --tenant-rate-limit-config)"
                    .to_owned()
            }
            Why::Refused(Reason::TenantRunning) => {
                "as many of your requests are running as may, and no place to wait is free \
                 (--tenant-max-concurrent-requests or --tenant-rate-limit-config, and --queue-size)"
                    .to_owned()
            }
            Why::Displaced => format!(
                "the place in the queue went to a more urgent request, or to a tenant that has fewer there; {waiting} \
                 may wait (--queue-size)"
            ),
            Why::TimedOut => format!(
                "no place became free within {} s of waiting (--queue-timeout-secs)",
                self.patience.as_secs()
            ),
        }
    }

    /// Writes how full it is to the gauges.
    pub fn observe(&self) {
        self.telemetry.admission(self.turnstile.gauges());
    }
}

fn limits_of(limits: TenantLimits) -> Limits {
    Limits {
        requests_per_minute: limits.requests_per_minute,
        tokens_per_minute: limits.tokens_per_minute,
        max_running: limits.max_concurrent_requests,
        weight: limits.weight,
    }
}

fn reason(why: &Why) -> &'static str {
    match why {
        Why::Refused(Reason::Full) => "full",
        Why::Refused(Reason::Rate) => "rate",
        Why::Refused(Reason::TenantRequests) => "tenant_requests",
        Why::Refused(Reason::TenantTokens) => "tenant_tokens",
        Why::Refused(Reason::TenantRunning) => "tenant_running",
        Why::Displaced => "displaced",
        Why::TimedOut => "timed_out",
    }
}

/// Never too few: who comes back then must not come in vain.
fn whole_seconds(wait: Duration) -> u32 {
    let seconds = wait.as_nanos().div_ceil(1_000_000_000);
    u32::try_from(seconds).unwrap_or(u32::MAX).max(RETRY_AFTER)
}

// === impl Spent ===

impl Spent {
    pub fn new(tokens: u64) -> Self {
        Self(Arc::new(AtomicU64::new(tokens)))
    }

    pub fn add(&self, tokens: u64) {
        self.0.fetch_add(tokens, Ordering::Relaxed);
    }
}

// === impl Held ===

impl Drop for Held {
    fn drop(&mut self) {
        let spent = self.spent.as_ref();
        self.permit.used = spent.map(|spent| spent.0.load(Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_to_come_back_are_whole_seconds_that_suffice() {
        let given = [0, 1, 999, 1000, 1001, 59_500].map(Duration::from_millis);
        assert_eq!(given.map(whole_seconds), [1, 1, 1, 1, 2, 60]);
        assert_eq!(whole_seconds(Duration::MAX), u32::MAX);
    }
}
