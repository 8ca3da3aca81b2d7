//! Probes: is the process up, can it serve, does a generation really work.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures::{
    FutureExt,
    future::{BoxFuture, Shared, WeakShared},
};
use http::{StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use smg_api::ApiError;
use smg_routing::BreakerState;
use tokio::time::Instant;

use crate::{
    context::Context,
    error::{Failure, RETRY_AFTER},
    workers::{Fleet, Member, Routable, prove},
};

/// A worker that needs longer for one token is of no use to clients.
const GENERATION_LIMIT: Duration = Duration::from_secs(20);

/// The process is up. A front door speaks for its worker and is healthy with it only.
pub async fn health(State(cx): State<Arc<Context>>) -> Response {
    if !cx.is_front_door || (cx.fleet.first_ready().is_ok() && !cx.lifecycle.is_draining()) {
        return (StatusCode::OK, "OK").into_response();
    }
    let members = cx.fleet.members();
    let worker = members.first();
    let progress = worker.map(|w| w.progress().to_string()).unwrap_or_default();
    let has_served = worker.is_some_and(|w| w.served().is_some());
    let status = if has_served { "unavailable" } else { "starting" };
    unavailable(json!({"status": status, "message": progress}))
}

pub async fn liveness() -> &'static str {
    "OK"
}

/// Whether a generation would find a worker.
pub async fn readiness(State(cx): State<Arc<Context>>) -> Response {
    let members = cx.fleet.members();
    let now = Instant::now().into_std();
    let ready = cx.fleet.ready();
    let open = |member: &&Arc<Member>| member.worker.breaker_state(now) == BreakerState::Open;
    let healthy = ready.len() - ready.iter().filter(open).count();
    if cx.lifecycle.is_draining() {
        return unavailable(json!({"status": "not ready", "reason": "shutting down"}));
    }
    if healthy > 0 {
        let body = json!({"status": "ready", "healthy_workers": healthy, "total_workers": members.len()});
        return (StatusCode::OK, axum::Json(body)).into_response();
    }
    let workers: Vec<_> = members
        .iter()
        .map(|m| {
            let breaker = m.worker.breaker_state(now).name();
            json!({"url": m.worker.url(), "state": m.worker.state().name(), "circuit_breaker": breaker,
                   "message": *m.progress()})
        })
        .collect();
    unavailable(json!({"status": "not ready", "reason": "insufficient healthy workers", "workers": workers}))
}

fn unavailable(body: serde_json::Value) -> Response {
    let headers = [(header::RETRY_AFTER, RETRY_AFTER.to_string())];
    (StatusCode::SERVICE_UNAVAILABLE, headers, axum::Json(body)).into_response()
}

/// The one probe generation that runs, if any. Probes that come meanwhile share it, so that whoever probes without
/// a key occupies one place of one worker at most.
#[derive(Default)]
pub struct ProbeFlight(Mutex<Option<WeakShared<ProbeFuture>>>);

type ProbeFuture = BoxFuture<'static, Result<(), Failure>>;

/// Generates one token on a ready worker, or embeds one where it has no other use.
pub async fn health_generate(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    if cx.lifecycle.is_draining() {
        return Err(ApiError::unavailable("the gateway is shutting down", RETRY_AFTER).into());
    }
    let fleet = cx.fleet.clone();
    cx.health_generate.join(|| probe(fleet).boxed()).await?;
    Ok(StatusCode::OK.into_response())
}

// === impl ProbeFlight ===

impl ProbeFlight {
    /// The flight that is under way, else a new one.
    fn join(&self, start: impl FnOnce() -> ProbeFuture) -> Shared<ProbeFuture> {
        let mut current = self.0.lock();
        let running = current.as_ref().and_then(WeakShared::upgrade);
        if let Some(flight) = running.filter(|flight| flight.peek().is_none()) {
            return flight;
        }
        let flight = start().shared();
        *current = flight.downgrade();
        flight
    }
}

async fn probe(fleet: Arc<Fleet>) -> Result<(), Failure> {
    let served = fleet
        .first_ready()?
        .served()
        .ok_or_else(|| failed("no worker is ready".to_owned()))?;
    let routable = Routable::new(&[0], 0, "", 1);
    let chosen = fleet.choose(&served.model, &routable, &[])?;
    let proof = prove(&chosen.member, served.info.is_generation, GENERATION_LIMIT).await;
    proof.map_err(|error| failed(error.to_string()))
}

fn failed(message: String) -> Failure {
    ApiError::unavailable(message, RETRY_AFTER)
        .with_code("health_generate_failed")
        .into()
}
