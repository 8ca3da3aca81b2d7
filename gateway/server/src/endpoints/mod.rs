//! The public inference routes. Each generating endpoint is two functions: a body becomes a `GenerateCall`,
//! and news of its answers become events.

pub mod chat;
pub mod completions;
pub mod generate;
pub mod info;
pub mod models;
pub mod tokenize;
mod usage;

use axum::{
    extract::Request,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::Serialize;
use smg_api::{ApiError, Routing};

use crate::{
    context::Context,
    error::Failure,
    layers::request_id::{REQUEST_ID_HEADER, RequestId},
    pipeline::CallId,
};

/// Headers that go on to the worker, so that its spans join the client's trace.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

/// A request with its whole body.
pub struct Incoming {
    pub id: RequestId,
    pub headers: HeaderMap,
    pub body: Bytes,
}

// === impl Incoming ===

impl Incoming {
    /// Reads a body that must be declared as JSON.
    pub async fn json(cx: &Context, request: Request) -> Result<Self, Failure> {
        if !is_json(request.headers()) {
            return Err(ApiError::unsupported_media_type().into());
        }
        Self::any(cx, request).await
    }

    /// Reads a body whatever it is declared as.
    pub async fn any(cx: &Context, request: Request) -> Result<Self, Failure> {
        let limit = cx.max_body_bytes;
        let (mut parts, body) = request.into_parts();
        if declared_length(&parts.headers).is_some_and(|length| length > limit as u64) {
            return Err(ApiError::too_large(limit).into());
        }
        let body = Limited::new(body, limit).collect().await.map_err(|error| {
            if error.downcast_ref::<LengthLimitError>().is_some() {
                ApiError::too_large(limit)
            } else {
                ApiError::invalid_body(format!("the request body broke off: {error}"))
            }
        })?;
        let id = parts
            .extensions
            .remove()
            .unwrap_or_else(|| RequestId::generate("req-"));
        Ok(Self {
            id,
            headers: parts.headers,
            body: body.to_bytes(),
        })
    }

    /// What the worker is told of the request besides its content.
    pub fn trace(&self) -> Vec<(String, String)> {
        let given = TRACE_HEADERS.iter().filter_map(|name| {
            let value = self.headers.get(*name)?.to_str().ok()?;
            Some(((*name).to_owned(), value.to_owned()))
        });
        let id = (REQUEST_ID_HEADER.to_owned(), self.id.0.to_string());
        given.chain([id]).collect()
    }

    /// The id of one prompt's generation: the client's `rid`, else the request's.
    pub fn call_id(&self, routing: &Routing) -> CallId {
        match &routing.rid {
            Some(rid) => CallId {
                value: rid.clone(),
                is_rid: true,
            },
            None => CallId {
                value: self.id.0.to_string(),
                is_rid: false,
            },
        }
    }
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

fn declared_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// A JSON answer.
pub fn json(value: &impl Serialize) -> Result<Response, Failure> {
    let body = serde_json::to_vec(value)
        .map_err(|error| ApiError::internal(format!("the answer cannot be written: {error}")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

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
