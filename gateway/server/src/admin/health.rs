//! Probes: is the process up, can it serve, does a generation really work.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, Shared, WeakShared},
};
use http::{StatusCode, header};
use parking_lot::Mutex;
use serde_json::json;
use smg_api::ApiError;
use smg_engine_client::{EmbedSpec, GenerateSpec, Sampling};
use smg_routing::BreakerState;
use tokio::time::Instant;
use uuid::Uuid;

use crate::{
    context::Context,
    error::{Failure, RETRY_AFTER},
    workers::{Fleet, Member, Routable},
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
    let answered = tokio::time::timeout(GENERATION_LIMIT, ask_one(&fleet)).await;
    answered.unwrap_or_else(|_| {
        let message = format!("no answer within {} s", GENERATION_LIMIT.as_secs());
        Err(failed(message))
    })
}

async fn ask_one(fleet: &Fleet) -> Result<(), Failure> {
    let served = fleet
        .first_ready()?
        .served()
        .ok_or_else(|| failed("no worker is ready".to_owned()))?;
    let tokens = [0];
    let routable = Routable::new(&tokens, 0, "", 1);
    let chosen = fleet.choose(&served.model, &routable, &[])?;
    let request_id = format!("HEALTH_CHECK_{}", Uuid::new_v4().simple());
    let client = &chosen.member.client;
    if !served.info.is_generation {
        let spec = EmbedSpec {
            request_id,
            input_ids: tokens.to_vec(),
            timeout: GENERATION_LIMIT,
            trace: Vec::new(),
        };
        let vector = client.embed(spec).await;
        return vector.map(drop).map_err(|error| failed(error.message()));
    }
    let spec = GenerateSpec {
        request_id,
        input_ids: tokens.to_vec(),
        sampling: Sampling {
            temperature: 0.0,
            max_new_tokens: Some(1),
            ..Sampling::default()
        },
        timeout: Some(GENERATION_LIMIT),
        ..GenerateSpec::default()
    };
    let mut events = client.generate(spec).await?;
    while let Some(event) = events.next().await {
        // Read to the end, so that nothing has to be aborted.
        event.map_err(|error| failed(error.message()))?;
    }
    Ok(())
}

fn failed(message: String) -> Failure {
    ApiError::unavailable(message, RETRY_AFTER)
        .with_code("health_generate_failed")
        .into()
}
