//! `POST /workers`, and `PUT`, `PATCH` and `DELETE /workers/{id}`: workers that come, change and go at run time.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{StatusCode, header};
use serde_json::{Map, Value, json};
use smg_api::{ApiError, clip};
use smg_routing::WorkerId;

use super::workers::unknown;
use crate::{
    context::Context,
    endpoints::Incoming,
    error::Failure,
    extract::{PathText, QueryPairs},
    workers::{Given, Member, RosterError, WrongField},
};

/// The longest time that a worker may take to leave.
const MAX_DRAIN_SECS: u64 = 86_400;

const FIELDS: &str = "url, labels, priority and cost";

/// Fields that say what every worker here is, with the value that says so.
const SETTLED: [(&str, &str); 4] = [
    ("worker_type", "regular"),
    ("runtime", "sglang"),
    ("runtime_type", "sglang"),
    ("connection_mode", "grpc"),
];

/// Whether what a body leaves out stays or falls back.
#[derive(Clone, Copy)]
enum Rest {
    Stays,
    FallsBack,
}

pub async fn add(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    check_several(&cx)?;
    let body = object(&Incoming::any(request)?)?;
    let url = match body.get("url") {
        Some(Value::String(url)) => url.clone(),
        None | Some(Value::Null) => {
            let message = "url is missing; give the worker's address as grpc://HOST:PORT or unix:///PATH";
            return Err(ApiError::missing("url", message).into());
        }
        Some(other) => return Err(wrong("url", "a string such as grpc://HOST:PORT", other).into()),
    };
    smg_config::check_worker_url("url", &url)
        .map_err(|error| ApiError::bad_request("url", error.to_string()))?;
    let given = changed(Given::default(), &body)?;
    let member = cx.roster.add(&url, given).await?;
    let location = format!("/workers/{}", member.worker.id());
    let message = format!("the worker is asked what it serves; GET {location} shows how far that is");
    let mut response = accepted(&member, &message);
    if let Ok(value) = location.parse() {
        response.headers_mut().insert(header::LOCATION, value);
    }
    Ok(response)
}

/// What the body leaves out falls back to what it is without being given.
pub async fn replace(
    State(cx): State<Arc<Context>>,
    PathText(id): PathText,
    request: Request,
) -> Result<Response, Failure> {
    update(&cx, &id, request, Rest::FallsBack).await
}

/// What the body leaves out stays; a label that is null goes.
pub async fn patch(
    State(cx): State<Arc<Context>>,
    PathText(id): PathText,
    request: Request,
) -> Result<Response, Failure> {
    update(&cx, &id, request, Rest::Stays).await
}

pub async fn remove(
    State(cx): State<Arc<Context>>,
    PathText(id): PathText,
    QueryPairs(query): QueryPairs,
) -> Result<Response, Failure> {
    check_several(&cx)?;
    let drain = drain(&query)?.unwrap_or(cx.times.drain);
    let member = cx.roster.remove(parse_id(&id)?, drain).await;
    let member = member.map_err(|error| of_id(&id, error))?;
    let message = format!(
        "no new request goes there; it is gone when those that run have ended, and after {} s at the latest",
        drain.as_secs()
    );
    Ok(accepted(&member, &message))
}

async fn update(cx: &Context, id: &str, request: Request, rest: Rest) -> Result<Response, Failure> {
    let body = object(&Incoming::any(request)?)?;
    let number = parse_id(id)?;
    let member = cx
        .fleet
        .members()
        .into_iter()
        .find(|member| member.worker.id() == number);
    let member = member.ok_or_else(|| unknown(id))?;
    match body.get("url") {
        None | Some(Value::Null) => {}
        Some(Value::String(url)) if url == member.worker.url() => {}
        Some(_) => {
            let message =
                "url cannot change; add the other address with POST /workers and remove this worker";
            return Err(ApiError::bad_request("url", message).into());
        }
    }
    let change = |before: Given| -> Result<Given, Failure> {
        let base = match rest {
            Rest::Stays => before,
            Rest::FallsBack => Given::default(),
        };
        changed(base, &body)
    };
    let changed = cx.roster.update(number, change).await;
    changed.map(|member| accepted(&member, "it counts from the next choice on"))
}

fn check_several(cx: &Context) -> Result<(), Failure> {
    if cx.is_front_door {
        let message =
            "this is the server of one worker, which comes and goes with it; run `smg launch` for several";
        return Err(ApiError::not_implemented(message).into());
    }
    Ok(())
}

fn accepted(member: &Member, message: &str) -> Response {
    let id = member.worker.id().to_string();
    let body = json!({
        "status": "accepted",
        "worker_id": id,
        "url": member.worker.url(),
        "location": format!("/workers/{id}"),
        "message": message,
    });
    (StatusCode::ACCEPTED, axum::Json(body)).into_response()
}

fn parse_id(text: &str) -> Result<WorkerId, Failure> {
    text.parse().map(WorkerId::new).map_err(|_| unknown(text))
}

fn drain(query: &HashMap<String, String>) -> Result<Option<Duration>, Failure> {
    let Some(text) = query.get("drain") else {
        return Ok(None);
    };
    let seconds = text.parse().ok().filter(|seconds| *seconds <= MAX_DRAIN_SECS);
    let Some(seconds) = seconds else {
        let message = format!(
            "drain must be whole seconds from 0 to {MAX_DRAIN_SECS}, got `{}`",
            clip(text)
        );
        return Err(ApiError::bad_request("drain", message).into());
    };
    Ok(Some(Duration::from_secs(seconds)))
}

fn object(incoming: &Incoming) -> Result<Map<String, Value>, Failure> {
    serde_json::from_slice(&incoming.body).map_err(|error| {
        let why = error.to_string();
        ApiError::invalid_body(format!("the body must be a JSON object: {}", clip(&why))).into()
    })
}

/// `given` with what a body says. The address is looked at elsewhere.
fn changed(mut given: Given, body: &Map<String, Value>) -> Result<Given, Failure> {
    for (name, value) in body {
        match (name.as_str(), value) {
            ("url", _) | (_, Value::Null) => {}
            ("labels", value) => label(&mut given, value)?,
            ("priority", value) => {
                let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
                given.priority =
                    number.ok_or_else(|| wrong("priority", "a whole number from 0 to 4294967295", value))?;
            }
            ("cost", value) => {
                let number = value.as_f64().map(|number| number as f32);
                given.cost = number.ok_or_else(|| wrong("cost", "a number from 0.001 to 1000", value))?;
            }
            (name, value) => settled(name, value)?,
        }
    }
    given
        .check()
        .map_err(|WrongField { field, message }| Failure::from(ApiError::bad_request(field, message)))?;
    Ok(given)
}

fn label(given: &mut Given, value: &Value) -> Result<(), Failure> {
    let labels = value
        .as_object()
        .ok_or_else(|| wrong("labels", "an object of strings", value))?;
    for (name, value) in labels {
        match value {
            Value::String(text) => drop(given.labels.insert(name.clone(), text.clone())),
            Value::Null => drop(given.labels.remove(name)),
            other => return Err(wrong(&format!("labels.{}", clip(name)), "a string, or null", other).into()),
        }
    }
    Ok(())
}

fn settled(name: &str, value: &Value) -> Result<(), Failure> {
    match SETTLED.iter().find(|(known, _)| *known == name) {
        Some((_, only))
            if value
                .as_str()
                .is_some_and(|given| given.eq_ignore_ascii_case(only)) =>
        {
            Ok(())
        }
        Some((_, only)) => Err(wrong(name, &format!("`{only}`, as every worker here is"), value).into()),
        None => {
            let message = format!("`{}` is no field of a worker, which has {FIELDS}", clip(name));
            Err(ApiError::bad_request(name, message)
                .with_code("unknown_parameter")
                .into())
        }
    }
}

fn wrong(field: &str, allowed: &str, given: &Value) -> ApiError {
    let message = format!("{field} must be {allowed}, got {}", clip(&given.to_string()));
    ApiError::bad_request(field, message)
}

/// The error of a request that names its worker by `id`.
fn of_id(id: &str, error: RosterError) -> Failure {
    match error {
        RosterError::Gone => unknown(id),
        other => other.into(),
    }
}

impl From<RosterError> for Failure {
    fn from(error: RosterError) -> Self {
        let message = error.to_string();
        match error {
            RosterError::Taken(taken) => {
                let message = format!(
                    "url: a worker of this address is registered already, with the id {}; change it with PATCH or remove \
                     it with DELETE /workers/{}",
                    taken.id, taken.id
                );
                ApiError::new(StatusCode::CONFLICT, "WORKER_ALREADY_EXISTS", message).with_param("url")
            }
            RosterError::Gone => ApiError::not_found(message).with_code("WORKER_NOT_FOUND"),
            RosterError::Address(_) => ApiError::bad_request("url", message),
            RosterError::File(_) | RosterError::Interrupted(_) => {
                ApiError::internal(format!("nothing was changed: {message}")).with_code("state_not_saved")
            }
        }
        .into()
    }
}
