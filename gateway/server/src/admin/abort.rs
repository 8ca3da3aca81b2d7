//! `POST /abort_request`: ends running generations by their exact id.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::json;
use smg_api::ApiError;

use crate::{
    context::Context,
    endpoints::{Incoming, json},
    error::Failure,
};

/// A worker that does not answer must not hold up the answer.
const FORWARD_LIMIT: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct AbortRequest {
    rid: Option<String>,
    #[serde(default)]
    abort_all: bool,
}

pub async fn abort(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::any(&cx, request).await?;
    let request: AbortRequest = serde_json::from_slice(&incoming.body).map_err(|error| {
        ApiError::invalid_body(format!(
            "the body must be an object with `rid` (text) or `abort_all` (bool): {error}"
        ))
    })?;
    let aborted = match (&request.rid, request.abort_all) {
        (_, true) => cx.live.abort_all(),
        (Some(rid), false) if !rid.is_empty() => {
            let aborted = cx.live.abort(rid);
            if aborted == 0 {
                forward(&cx, rid).await;
            }
            aborted
        }
        _ => return Err(ApiError::missing("rid", "give `rid`, or `abort_all: true`").into()),
    };
    json(&json!({"success": true, "num_aborted": aborted}))
}

/// The request may run for another gateway of the same workers.
async fn forward(cx: &Context, rid: &str) {
    let members = cx.fleet.ready();
    let aborts = join_all(
        members
            .iter()
            .map(|member| member.client.abort(rid, "Aborted by /abort_request")),
    );
    match tokio::time::timeout(FORWARD_LIMIT, aborts).await {
        Ok(outcomes) => {
            for error in outcomes.into_iter().filter_map(Result::err) {
                tracing::debug!(%error, rid, "a worker did not take an abort");
            }
        }
        Err(_) => tracing::debug!(rid, "some workers did not take an abort in time"),
    }
}
