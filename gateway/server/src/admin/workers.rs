//! `GET /workers`: what the gateway knows of each worker.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use serde::Serialize;
use serde_json::{Value, json};
use smg_api::{ApiError, clip};
use smg_routing::WorkerState;
use tokio::time::Instant;

use crate::{
    context::Context,
    endpoints::json,
    error::Failure,
    extract::PathText,
    workers::{FeedState, Member},
};

/// Documented keys, and what our workers add.
#[derive(Serialize)]
struct WorkerView {
    id: String,
    url: String,
    model_id: Option<String>,
    priority: u32,
    cost: f32,
    worker_type: &'static str,
    is_healthy: bool,
    /// Requests that run on it.
    load: usize,
    connection_mode: &'static str,
    runtime_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tokenizer_path: Option<String>,
    metadata: Value,
    disable_health_check: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_status: Option<Value>,
    status: &'static str,
    message: String,
    pending_tokens: usize,
    circuit_breaker: &'static str,
    consecutive_failures: u32,
    /// How far its reports of what it caches are followed; null where it reports nothing.
    kv_events: Option<FeedView>,
}

/// Counts since the worker's present process was first seen.
#[derive(Serialize)]
struct FeedView {
    /// What it holds is known, not guessed.
    is_exact: bool,
    batches: u64,
    gaps: u64,
    repairs: u64,
    snapshots: u64,
    restarts: u64,
    /// Gaps that nothing closed: all was forgotten then.
    lost: u64,
}

impl FeedView {
    /// Of all its ranks together.
    fn of(feeds: &[FeedState]) -> Option<Self> {
        let sum = |count: fn(&FeedState) -> u64| feeds.iter().map(count).sum();
        (!feeds.is_empty()).then(|| Self {
            is_exact: feeds.iter().all(|feed| feed.is_exact),
            batches: sum(|feed| feed.counters.batches),
            gaps: sum(|feed| feed.counters.gaps),
            repairs: sum(|feed| feed.counters.repairs),
            snapshots: sum(|feed| feed.counters.snapshots),
            restarts: sum(|feed| feed.counters.restarts),
            lost: sum(|feed| feed.counters.lost),
        })
    }
}

pub async fn list(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    let workers: Vec<WorkerView> = cx
        .fleet
        .members()
        .iter()
        .map(|member| view(&cx, member))
        .collect();
    let total = workers.len();
    let stats = json!({"prefill_count": 0, "decode_count": 0, "regular_count": total});
    json(&json!({"workers": workers, "total": total, "stats": stats}))
}

pub async fn one(State(cx): State<Arc<Context>>, PathText(id): PathText) -> Result<Response, Failure> {
    let members = cx.fleet.members();
    match members.iter().find(|member| member.worker.id().to_string() == id) {
        Some(member) => json(&view(&cx, member)),
        None => Err(unknown(&id)),
    }
}

pub fn unknown(id: &str) -> Failure {
    let message = format!("there is no worker `{}`; GET /workers lists them", clip(id));
    ApiError::not_found(message).with_code("WORKER_NOT_FOUND").into()
}

fn view(cx: &Context, member: &Member) -> WorkerView {
    let worker = &member.worker;
    let (state, info) = (worker.state(), worker.info());
    let message = member.progress().to_string();
    let loading = (state == WorkerState::Loading).then(|| {
        json!({"job_type": "AddWorker", "worker_url": worker.url(), "status": "processing", "message": message})
    });
    WorkerView {
        id: worker.id().to_string(),
        url: worker.url().to_owned(),
        model_id: info.model.clone(),
        priority: worker.priority(),
        cost: worker.cost(),
        worker_type: info.role.name(),
        is_healthy: state == WorkerState::Ready,
        load: worker.running_requests(),
        connection_mode: "gRPC",
        runtime_type: "sglang",
        tokenizer_path: member.served().map(|served| served.info.tokenizer_path.clone()),
        metadata: json!(info.labels),
        disable_health_check: cx.disable_health_check,
        job_status: loading,
        status: state.name(),
        message,
        pending_tokens: worker.pending_tokens(),
        circuit_breaker: worker.breaker_state(Instant::now().into_std()).name(),
        consecutive_failures: worker.consecutive_failures(),
        kv_events: FeedView::of(&cx.fleet.prefixes.feeds_of(worker.id())),
    }
}
