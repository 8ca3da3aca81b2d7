//! `/metrics` of the gateway, and `/engine_metrics` of all workers in one.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use http::header;
use metrics::SharedString;
use serde_json::Value;
use smg_api::ApiError;
use smg_routing::BreakerState;
use tokio::time::Instant;

use crate::exposition::Merged;
use crate::{context::Context, error::Failure, telemetry::WorkerGauges, workers::Member};

pub const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A scrape must not wait for a worker that hangs.
const FETCH_LIMIT: Duration = Duration::from_secs(5);

/// The gateway's own series; those of its worker as well where it is the front door of one.
pub async fn gateway(State(cx): State<Arc<Context>>) -> Response {
    observe(&cx);
    let mut text = cx.telemetry.render();
    if cx.is_front_door {
        for member in cx.fleet.ready() {
            match fetch(&member).await {
                Ok(engine) => text.push_str(&engine),
                Err(reason) => tracing::debug!(reason, "the worker's metrics are missing"),
            }
        }
    }
    ([(header::CONTENT_TYPE, TEXT_FORMAT)], text).into_response()
}

/// All workers' series, each sample labelled with its worker.
pub async fn engines(State(cx): State<Arc<Context>>) -> Result<Response, Failure> {
    cx.fleet.first_ready()?;
    let members = cx.fleet.ready();
    let texts = join_all(members.iter().map(|member| fetch(member))).await;
    let mut merged = Merged::default();
    let mut reasons = Vec::new();
    for (member, text) in members.iter().zip(texts) {
        match text {
            Ok(text) => merged.add(&text, "worker_addr", member.worker.url()),
            Err(reason) => reasons.push(format!("{}: {reason}", member.worker.url())),
        }
    }
    if reasons.len() == members.len() {
        let message = format!("no worker told its metrics: {}", reasons.join("; "));
        return Err(ApiError::bad_gateway(message).into());
    }
    Ok(([(header::CONTENT_TYPE, TEXT_FORMAT)], merged.text()).into_response())
}

/// A worker's series as text: the operation answers the text itself or an object that has it under `text`.
async fn fetch(member: &Member) -> Result<String, String> {
    let answer = tokio::time::timeout(FETCH_LIMIT, member.client.control("metrics", &Value::Null)).await;
    let value = answer
        .map_err(|_| "no answer in time".to_owned())?
        .map_err(|error| error.message())?;
    let text = value
        .as_str()
        .or_else(|| value["text"].as_str())
        .or_else(|| value["metrics"].as_str());
    text.map(str::to_owned)
        .ok_or_else(|| "the worker's answer holds no text".to_owned())
}

/// Writes what is read at scrape time only.
fn observe(cx: &Context) {
    cx.admission.observe();
    let now = Instant::now().into_std();
    for model in cx.fleet.set.models() {
        let workers = cx.fleet.set.ready(Some(&model)).len();
        cx.telemetry.pool_size(&SharedString::from_owned(model), workers);
    }
    let prefixes = &cx.fleet.prefixes;
    let told = prefixes.reported_stats();
    cx.telemetry
        .prefix_index("events", told.bytes, told.held_pages, told.evicted);
    let sent = prefixes.sent_stats();
    cx.telemetry
        .prefix_index("sent", sent.bytes, sent.pages, sent.evicted);
    for worker in cx.fleet.set.list().iter() {
        let feeds = prefixes.feeds_of(worker.id());
        if !feeds.is_empty() {
            let is_exact = feeds.iter().all(|feed| feed.is_exact);
            let gaps = feeds.iter().map(|feed| feed.counters.gaps).sum();
            let url = SharedString::from_owned(worker.url().to_owned());
            cx.telemetry.kv_feed(&url, is_exact, gaps);
        }
        let state = WorkerGauges {
            ready: worker.is_available(now),
            running_requests: worker.running_requests(),
            pending_tokens: worker.pending_tokens(),
            breaker: match worker.breaker_state(now) {
                BreakerState::Closed => 0,
                BreakerState::Open => 1,
                BreakerState::HalfOpen => 2,
            },
        };
        cx.telemetry
            .worker_state(&SharedString::from_owned(worker.url().to_owned()), state);
    }
}
