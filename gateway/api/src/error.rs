//! The one error of the HTTP API, and its one rendering.

use std::borrow::Cow;

use http::StatusCode;
use serde::{Serialize, Serializer};

use crate::clip::{MAX_QUOTED_CHARS, clip, clip_to};

/// The most characters of a message. Ours are far shorter; others' words (a worker's, a chat template's) may hold what
/// a client sent.
const MAX_MESSAGE_CHARS: usize = 2000;

/// What a client did, or met: status, stable code and a sentence that says what to change.
///
/// Renders the same at every endpoint, as `{"error":{"message","type","param","code"}}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    pub status: StatusCode,
    pub kind: ErrorKind,
    /// Stable snake_case word for programs and metrics, such as `model_not_found`.
    pub code: Cow<'static, str>,
    pub message: String,
    /// The field that is wrong, such as `messages[0].content`.
    pub param: Option<String>,
    /// Seconds until a repetition may succeed; the value of the `Retry-After` header.
    pub retry_after: Option<u32>,
}

/// The coarse `type` of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    InvalidRequest,
    Authentication,
    NotFound,
    RateLimit,
    Unavailable,
    Timeout,
    Server,
}

impl ErrorKind {
    /// The word of the `type` key.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request_error",
            Self::Authentication => "authentication_error",
            Self::NotFound => "not_found_error",
            Self::RateLimit => "rate_limit_error",
            Self::Unavailable => "service_unavailable_error",
            Self::Timeout => "timeout_error",
            Self::Server => "server_error",
        }
    }

    fn of_status(status: StatusCode) -> Self {
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Self::Authentication,
            StatusCode::NOT_FOUND => Self::NotFound,
            StatusCode::TOO_MANY_REQUESTS => Self::RateLimit,
            StatusCode::SERVICE_UNAVAILABLE => Self::Unavailable,
            StatusCode::REQUEST_TIMEOUT | StatusCode::GATEWAY_TIMEOUT => Self::Timeout,
            other if other.is_client_error() => Self::InvalidRequest,
            _ => Self::Server,
        }
    }
}

// ------------------------------------------------------------------ constructors

impl ApiError {
    /// An error whose `type` follows from the status.
    pub fn new(status: StatusCode, code: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            status,
            kind: ErrorKind::of_status(status),
            code: code.into(),
            message: bounded(message.into(), MAX_MESSAGE_CHARS),
            param: None,
            retry_after: None,
        }
    }

    /// 400: `param` has a value that is not allowed.
    pub fn bad_request(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_value", message).with_param(param)
    }

    /// 400: the body as a whole cannot be read.
    pub fn invalid_body(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_body", message)
    }

    /// 400: a required field is absent.
    pub fn missing(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "missing_field", message).with_param(param)
    }

    /// 400: the option exists in the API, but this version does not have it.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message).with_param(param)
    }

    /// 400: prompt, or prompt and answer, do not fit the model's context.
    pub fn context_length_exceeded(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message).with_param(param)
    }

    /// 400: the documented answer to a body that is not declared as JSON.
    pub fn unsupported_media_type() -> Self {
        let message = "Unsupported Media Type: Only 'application/json' is allowed. Send the header \
             `content-type: application/json`";
        Self::new(StatusCode::BAD_REQUEST, "unsupported_media_type", message)
    }

    /// 415: the body is compressed.
    pub fn unsupported_content_encoding(given: &str) -> Self {
        let message = format!(
            "the header content-encoding must be absent or `identity`, got `{}`; send the body as plain JSON",
            clip(given)
        );
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "unsupported_content_encoding",
            message,
        )
        .with_param("content-encoding")
    }

    /// 401: the key is absent or wrong.
    pub fn unauthorized() -> Self {
        let message = "Unauthorized: send the API key as `Authorization: Bearer KEY`";
        Self::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message)
    }

    /// 404: no worker serves `model`.
    pub fn model_not_found(model: &str, served: &[&str]) -> Self {
        let message = format!(
            "The model `{}` does not exist; this server has: {}",
            clip(model),
            served.join(", ")
        );
        Self::new(StatusCode::NOT_FOUND, "model_not_found", message).with_param("model")
    }

    /// 404: no such route or resource.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    /// 405: the route exists for other methods only.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
    }

    /// 408: the body did not arrive in time.
    pub fn body_timeout(seconds: u64) -> Self {
        let message = format!("the request body did not arrive within {seconds} s");
        Self::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message)
    }

    /// 413: the body has more than `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        let message =
            format!("The request body is larger than the limit of {limit} bytes (--max-payload-size)");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "payload_too_large", message)
    }

    /// 429: too many requests are running and waiting.
    pub fn rate_limited(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", message).with_retry_after(retry_after)
    }

    /// 500: a fault of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
    }

    /// 501: the route is known, the served model or worker cannot do it.
    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", message)
    }

    /// 502: the worker broke off or answered nonsense.
    pub fn bad_gateway(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_GATEWAY, "worker_failed", message)
    }

    /// 503: no worker can take the request now.
    pub fn unavailable(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_available_workers", message)
            .with_retry_after(retry_after)
    }

    /// 504: the request took longer than it may.
    pub fn timeout(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GATEWAY_TIMEOUT, "timeout", message)
    }

    /// An error that a worker reported with its own status; a status that is no error becomes 500.
    pub fn from_worker_status(status: u16, message: impl Into<String>) -> Self {
        let status = StatusCode::from_u16(status)
            .ok()
            .filter(|s| s.is_client_error() || s.is_server_error())
            .unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let code = match status {
            StatusCode::BAD_REQUEST => "invalid_value",
            StatusCode::NOT_FOUND => "not_found",
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_exceeded",
            StatusCode::SERVICE_UNAVAILABLE => "worker_unavailable",
            StatusCode::GATEWAY_TIMEOUT => "timeout",
            _ => "worker_failed",
        };
        Self::new(status, code, message)
    }

    pub fn with_code(mut self, code: impl Into<Cow<'static, str>>) -> Self {
        self.code = code.into();
        self
    }

    pub fn with_param(mut self, param: impl Into<String>) -> Self {
        self.param = Some(bounded(param.into(), MAX_QUOTED_CHARS));
        self
    }

    pub fn with_retry_after(mut self, seconds: u32) -> Self {
        self.retry_after = Some(seconds);
        self
    }
}

fn bounded(text: String, max_chars: usize) -> String {
    let clipped = match clip_to(&text, max_chars) {
        Cow::Borrowed(_) => None,
        Cow::Owned(clipped) => Some(clipped),
    };
    clipped.unwrap_or(text)
}

// ------------------------------------------------------------------ rendering

#[derive(Serialize)]
struct ErrorBody<'a> {
    error: ErrorFields<'a>,
}

#[derive(Serialize)]
struct ErrorFields<'a> {
    message: &'a str,
    r#type: &'static str,
    param: Option<&'a str>,
    code: &'a str,
}

impl Serialize for ApiError {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let fields = ErrorFields {
            message: &self.message,
            r#type: self.kind.as_str(),
            param: self.param.as_deref(),
            code: &self.code,
        };
        ErrorBody { error: fields }.serialize(serializer)
    }
}

impl ApiError {
    /// The JSON body, also the payload of an error event inside a stream.
    pub fn to_json(&self) -> String {
        // A struct of strings cannot fail to serialize.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The server-sent event for a failure after the first byte.
    pub fn sse_event(&self) -> String {
        format!("data: {}\n\n", self.to_json())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_the_nested_openai_shape() {
        let error = ApiError::bad_request("top_k", "top_k must be -1 or at least 1, got 0");
        assert_eq!(
            error.to_json(),
            r#"{"error":{"message":"top_k must be -1 or at least 1, got 0","type":"invalid_request_error","param":"top_k","code":"invalid_value"}}"#
        );
    }

    #[test]
    fn an_error_without_a_field_has_a_null_param() {
        let error = ApiError::unavailable("no worker is ready", 5);
        assert_eq!(
            error.sse_event(),
            "data: {\"error\":{\"message\":\"no worker is ready\",\"type\":\"service_unavailable_error\",\"param\":null,\"code\":\"no_available_workers\"}}\n\n"
        );
        assert_eq!(error.retry_after, Some(5));
    }

    #[test]
    fn an_unknown_model_of_any_length_is_a_404() {
        let error = ApiError::model_not_found(&"é".repeat(300), &["demo"]);
        assert_eq!(error.status, StatusCode::NOT_FOUND);
        assert_eq!(error.code, "model_not_found");
        assert!(error.message.ends_with("this server has: demo"));
    }

    #[test]
    fn words_of_others_and_names_of_fields_are_bounded() {
        let error = ApiError::from_worker_status(400, "é".repeat(1 << 20)).with_param("k".repeat(1 << 20));
        assert!(error.message.ends_with("é… (1048576 characters)"));
        assert!(error.to_json().len() < 5000);
    }

    #[test]
    fn a_worker_status_keeps_its_class() {
        for (given, status, kind) in [
            (400, 400, ErrorKind::InvalidRequest),
            (503, 503, ErrorKind::Unavailable),
            (500, 500, ErrorKind::Server),
            (200, 500, ErrorKind::Server),
            (0, 500, ErrorKind::Server),
        ] {
            let error = ApiError::from_worker_status(given, "x");
            assert_eq!((error.status.as_u16(), error.kind), (status, kind), "{given}");
        }
    }
}
