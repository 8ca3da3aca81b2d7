//! The public inference routes. Each generating endpoint is two functions: a body becomes a `GenerateCall`,
//! and news of its answers become events.

pub mod chat;
mod chunks;
pub mod completions;
pub mod embeddings;
pub mod generate;
pub mod info;
pub mod models;
pub mod sessions;
pub mod tokenize;
mod tool_calls;
mod usage;

use std::sync::Arc;

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use serde::Serialize;
use smg_api::{ApiError, Routing, clip};
use tokio::time::Instant;

use crate::{
    error::Failure,
    layers::{
        body::{BodySpace, ReadBody},
        request_id::{REQUEST_ID_HEADER, RequestId},
        trace::Arrived,
    },
    pipeline::CallId,
    spans::{self, Span},
};

/// Requests of one key belong together; the field `routing_key` says the same.
const ROUTING_KEY_HEADER: &str = "x-smg-routing-key";

/// The place of the worker that is to serve the request, for the policy `consistent_hashing`.
const TARGET_HEADER: &str = "x-smg-target-worker";

/// A request with its whole body.
pub struct Incoming {
    pub id: RequestId,
    pub span: Span,
    pub arrived: Instant,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub space: Arc<BodySpace>,
}

// === impl Incoming ===

impl Incoming {
    /// A request whose body must be declared as JSON.
    pub fn json(request: Request) -> Result<Self, Failure> {
        if !is_json(request.headers()) {
            return Err(ApiError::unsupported_media_type().into());
        }
        Self::any(request)
    }

    /// A request whose body counts as JSON whatever it is declared as.
    pub fn any(request: Request) -> Result<Self, Failure> {
        let (mut parts, _) = request.into_parts();
        let body: ReadBody = parts
            .extensions
            .remove()
            .ok_or_else(|| ApiError::internal("this route does not read bodies"))?;
        let id = parts
            .extensions
            .remove()
            .unwrap_or_else(|| RequestId::generate("req-"));
        Ok(Self {
            id,
            span: parts.extensions.remove().unwrap_or_default(),
            arrived: Arrived::of(&parts.extensions),
            headers: parts.headers,
            body: body.bytes,
            space: body.space,
        })
    }

    /// What the worker is told of the request besides its content.
    pub fn trace(&self) -> Vec<(String, String)> {
        let id = (REQUEST_ID_HEADER.to_owned(), self.id.0.to_string());
        spans::context_of(&self.headers).chain([id]).collect()
    }

    /// The id of one prompt's generation, and where it goes; the headers say what the body leaves open.
    pub fn place(&self, mut routing: Routing) -> Result<(CallId, Routing), ApiError> {
        if routing.routing_key.is_none() {
            let given = self
                .headers
                .get(ROUTING_KEY_HEADER)
                .and_then(|key| key.to_str().ok());
            routing.routing_key = given.filter(|key| !key.is_empty()).map(str::to_owned);
        }
        routing.target_worker = self.headers.get(TARGET_HEADER).map(target_worker).transpose()?;
        Ok((self.call_id(&mut routing), routing))
    }

    /// The client's `rid`, else the request's id.
    fn call_id(&self, routing: &mut Routing) -> CallId {
        match (routing.rid.take(), &routing.session) {
            (Some(rid), _) => CallId {
                value: rid,
                is_rid: true,
                group: routing.batch_rid.take(),
            },
            // The next request of the session names this one by its id, which may not repeat.
            (None, Some(_)) => CallId {
                value: RequestId::generate("turn-").0.to_string(),
                is_rid: true,
                group: Some(self.id.0.to_string()),
            },
            (None, None) => CallId {
                value: self.id.0.to_string(),
                is_rid: false,
                group: None,
            },
        }
    }
}

fn target_worker(given: &HeaderValue) -> Result<u32, ApiError> {
    let text = String::from_utf8_lossy(given.as_bytes());
    text.trim().parse().map_err(|_| {
        let message = format!(
            "the header {TARGET_HEADER} must be a whole number from 0, the place of a worker in GET /workers, got `{}`",
            clip(&text)
        );
        ApiError::bad_request(TARGET_HEADER, message)
    })
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
    else {
        return false;
    };
    let media_type = value.split(';').next().unwrap_or_default().trim();
    let subtype = media_type.rsplit_once('/').map_or("", |(_, subtype)| subtype);
    media_type.eq_ignore_ascii_case("application/json")
        || media_type.len() > 12
            && media_type[..12].eq_ignore_ascii_case("application/")
            && subtype.ends_with("+json")
}

/// A JSON answer.
pub fn json(value: &impl Serialize) -> Result<Response, Failure> {
    let body = serde_json::to_vec(value)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_media_types_are_recognized() {
        let cases = [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.api+json", true),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("", false),
        ];
        for (given, expected) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(given));
            assert_eq!(is_json(&headers), expected, "{given}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }
}
