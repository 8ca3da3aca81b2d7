//! `POST /abort_request`: ends running generations by their exact id.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::Response,
};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use smg_api::{ApiError, clip};

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
    let incoming = Incoming::any(request)?;
    let request: AbortRequest = serde_json::from_slice(&incoming.body).map_err(|error| {
        ApiError::invalid_body(format!(
            "the body must be an object with `rid` (text) or `abort_all` (bool): {}",
            clip(&error.to_string())
        ))
    })?;
    let aborted = match (&request.rid, request.abort_all) {
        (_, true) => {
            let aborted = cx.live.abort_all();
            // What came to the workers by other ways is not counted: it may be what was ended here.
            forward(&cx, &json!({"all": true})).await;
            aborted
        }
        (Some(rid), false) if !rid.is_empty() => match cx.live.abort(rid) {
            // The request may run for another gateway of the same workers.
            0 => forward(&cx, &json!({"rid": rid})).await,
            aborted => aborted,
        },
        _ => return Err(ApiError::missing("rid", "give `rid`, or `abort_all: true`").into()),
    };
    json(&json!({"success": true, "num_aborted": aborted}))
}

/// Has every worker abort; returns how many requests they ended.
async fn forward(cx: &Context, args: &Value) -> usize {
    let members = cx.fleet.ready();
    let aborts = join_all(members.iter().map(|member| member.client.control("abort", args)));
    let Ok(outcomes) = tokio::time::timeout(FORWARD_LIMIT, aborts).await else {
        tracing::debug!(%args, "some workers did not take an abort in time");
        return 0;
    };
    let mut aborted = 0;
    for outcome in outcomes {
        match outcome {
            Ok(told) => aborted += told["aborted"].as_u64().unwrap_or(0) as usize,
            // Foreign engines have no such operation.
            Err(error) => tracing::debug!(%error, %args, "a worker did not take an abort"),
        }
    }
    aborted
}
