//! Counts every exchange, logs how it ended, and makes its span.

use std::sync::Arc;

use axum::{
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use http::{Extensions, Method};
use metrics::SharedString;
use tokio::time::Instant;

use super::request_id::RequestId;
use crate::{context::Context, error::ERROR_CODE_HEADER, spans::Span, telemetry::HttpOutcome};

/// "Not ready" is a good answer to these, and whoever waits asks often.
const PROBES: [&str; 3] = ["/health", "/readiness", "/ready"];

/// They are asked all the time.
const UNTRACED: [&str; 7] = [
    "/health",
    "/liveness",
    "/readiness",
    "/ready",
    "/health_generate",
    "/metrics",
    "/engine_metrics",
];

/// When a request arrived, as its extension.
#[derive(Clone, Copy)]
pub struct Arrived(Instant);

pub async fn layer(State(cx): State<Arc<Context>>, mut request: Request, next: Next) -> Response {
    let started = Instant::now();
    request.extensions_mut().insert(Arrived(started));
    let method = method_label(request.method());
    let path = path_label(&request);
    let id = request.extensions().get::<RequestId>().cloned();
    cx.telemetry.http_request(method, &path);
    let span = span(&cx, &request, method, &path);
    request.extensions_mut().insert(span.clone());

    let response = next.run(request).await;

    let status = response.status();
    let error_code = response
        .headers()
        .get(ERROR_CODE_HEADER)
        .and_then(|v| v.to_str().ok())
        .unwrap_or("");
    let elapsed = started.elapsed();
    cx.telemetry.http_response(
        method,
        &path,
        HttpOutcome {
            status: status.as_u16(),
            error_code,
            elapsed,
        },
    );
    let id = id.as_ref().map_or("", |id| &*id.0);
    span.set("http.response.status_code", i64::from(status.as_u16()));
    if status.is_server_error() {
        span.fail(error_code);
    }
    if status.is_server_error() && !PROBES.contains(&path.as_ref()) {
        tracing::warn!(id, method, %path, status = status.as_u16(), error_code, ?elapsed, "request failed");
    } else {
        tracing::debug!(id, method, %path, status = status.as_u16(), error_code, ?elapsed, "request answered");
    }
    response
}

/// Questions about the server itself are no part of a trace.
fn span(cx: &Context, request: &Request, method: &'static str, path: &SharedString) -> Span {
    if UNTRACED.contains(&path.as_ref()) {
        return Span::default();
    }
    let span = cx.spans.request(|| format!("{method} {path}"), request.headers());
    if span.is_recorded() {
        span.set("http.request.method", method);
        span.set("http.route", path.to_string());
        span.set("url.path", request.uri().path().to_owned());
        if let Some(id) = request.extensions().get::<RequestId>() {
            span.set("request.id", id.0.to_string());
        }
    }
    span
}

impl Arrived {
    /// The moment of arrival; now for a request that did not come through this layer.
    pub fn of(extensions: &Extensions) -> Instant {
        extensions
            .get::<Self>()
            .map_or_else(Instant::now, |arrived| arrived.0)
    }
}

/// Unknown paths and methods share one label each: clients must not be able to grow the series.
fn path_label(request: &Request) -> SharedString {
    match request.extensions().get::<MatchedPath>() {
        Some(path) => SharedString::from_owned(path.as_str().to_owned()),
        None => SharedString::const_str("unmatched"),
    }
}

fn method_label(method: &Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        "HEAD" => "HEAD",
        "OPTIONS" => "OPTIONS",
        "PATCH" => "PATCH",
        _ => "other",
    }
}
