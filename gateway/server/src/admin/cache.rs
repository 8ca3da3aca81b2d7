//! `/flush_cache`: empties the prefix cache of every worker.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
};
use futures::future::join_all;
use http::StatusCode;
use serde_json::json;
use smg_api::{ApiError, clip};

use crate::{context::Context, error::Failure, extract::QueryPairs, workers::Member};

/// `?timeout=` is how many seconds a busy worker may take to become idle.
pub async fn flush(
    State(cx): State<Arc<Context>>,
    QueryPairs(query): QueryPairs,
) -> Result<Response, Failure> {
    let timeout = match query.get("timeout") {
        Some(given) => parse_seconds(given)?,
        None => 0.0,
    };
    cx.fleet.first_ready()?;
    let workers = cx.fleet.ready();
    let outcomes = join_all(workers.iter().map(|member| flush_one(member, timeout))).await;
    let (mut successful, mut failed) = (Vec::new(), Vec::new());
    for (member, outcome) in workers.iter().zip(outcomes) {
        match outcome {
            Ok(()) => {
                cx.fleet.prefixes.forget_sent(member.worker.id());
                successful.push(member.worker.url());
            }
            Err(error) => failed.push(json!({"worker": member.worker.url(), "error": error})),
        }
    }
    let (status, word) = match (successful.is_empty(), failed.is_empty()) {
        (_, true) => (StatusCode::OK, "success"),
        (false, false) => (StatusCode::PARTIAL_CONTENT, "partial_success"),
        (true, false) => (StatusCode::BAD_REQUEST, "failed"),
    };
    let message = format!(
        "Cache flushed on {} of {} workers",
        successful.len(),
        workers.len()
    );
    let body = json!({
        "status": word,
        "message": message,
        "workers_flushed": successful.len(),
        "total_workers": workers.len(),
        "successful": successful,
        "failed": failed,
    });
    Ok((status, axum::Json(body)).into_response())
}

async fn flush_one(member: &Member, timeout: f32) -> Result<(), String> {
    match member.client.flush_cache(timeout).await {
        Ok((true, _)) => Ok(()),
        Ok((false, message)) => Err(message),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_seconds(given: &str) -> Result<f32, Failure> {
    let seconds = given
        .parse::<f32>()
        .ok()
        .filter(|seconds| (0.0..=600.0).contains(seconds));
    seconds.ok_or_else(|| {
        let message = format!("timeout must be seconds from 0 to 600, got `{}`", clip(given));
        ApiError::bad_request("timeout", message).into()
    })
}
