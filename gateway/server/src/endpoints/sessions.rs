//! `/open_session` and `/close_session`: conversations that a worker keeps.

use std::{sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::{Value, json};
use smg_api::{ApiError, CloseSession, OpenSession};
use smg_engine_client::StatusClass;
use smg_routing::WorkerId;
use uuid::Uuid;

use super::{Incoming, json};
use crate::{
    context::Context,
    error::{Failure, RETRY_AFTER},
    workers::Routable,
};

/// Opens a session on one worker, where all of its requests go.
pub async fn open(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::any(request)?;
    let wish = OpenSession::parse(&incoming.body)?;
    if cx.lifecycle.is_draining() {
        let error = ApiError::unavailable("the gateway is shutting down", RETRY_AFTER);
        return Err(error.with_code("shutting_down").into());
    }
    let served = cx.fleet.served(wish.model.as_deref())?;
    let id = wish
        .session_id
        .unwrap_or_else(|| Uuid::new_v4().simple().to_string());
    let timeout = wish.timeout.map(Duration::try_from_secs_f64).and_then(Result::ok);
    let reserved = cx.fleet.sessions.reserve(&id, timeout)?;
    let args = json!({
        "capacity_of_str_len": wish.capacity_of_str_len,
        "session_id": id,
        "streaming": wish.streaming,
        "timeout": wish.timeout,
    });
    let worker = open_on_any(&cx, &served.model, &args).await?;
    reserved.keep(worker);
    json(&id)
}

/// Asks worker after worker until one has opened it.
async fn open_on_any(cx: &Context, model: &str, args: &Value) -> Result<WorkerId, Failure> {
    let mut avoid = Vec::new();
    loop {
        let chosen = cx.fleet.choose(model, &Routable::opening(), &avoid)?;
        let (member, id) = (&chosen.member, chosen.member.worker.id());
        let Err(error) = member.client.control("open_session", args).await else {
            return Ok(id);
        };
        avoid.push(id);
        if !error.retryable() || !cx.fleet.has_other(model, &avoid) {
            return Err(Failure::of_operation("open_session", &error));
        }
    }
}

/// Frees a session; 404 for one that is not open.
pub async fn close(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::any(request)?;
    let id = CloseSession::parse(&incoming.body)?.session_id;
    let session = cx.fleet.sessions.enter(&id)?;
    let members = cx.fleet.members();
    if let Some(member) = members
        .iter()
        .find(|member| member.worker.id() == session.worker())
    {
        let closed = member
            .client
            .control("close_session", &json!({"session_id": id}))
            .await;
        match closed {
            Ok(_) => {}
            // Its time was over: the worker has closed it before.
            Err(error) if error.status_class() == StatusClass::InvalidArgument => {}
            Err(error) => return Err(Failure::of_operation("close_session", &error)),
        }
    }
    cx.fleet.sessions.remove(&id);
    Ok(StatusCode::OK.into_response())
}
