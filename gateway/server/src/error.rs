//! The only table that turns each crate's errors into answers of the HTTP API.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use smg_api::{ApiError, clip};
use smg_engine_client::{EngineError, Finish, StatusClass};
use smg_tokenizer::{DecodeError, StopError, TemplateError, TokenizerError};

/// Tells programs what went wrong without reading the body.
pub const ERROR_CODE_HEADER: &str = "x-smg-error-code";

/// Seconds after which a client may try again when all that is missing is a free or loaded worker.
pub const RETRY_AFTER: u32 = 1;

/// What an endpoint answers instead of a result.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Failure(pub ApiError);

// === impl Failure ===

impl Failure {
    /// The error of a generation that a worker ended on its own, if that is an error: an abort without a
    /// status is somebody's wish.
    pub fn of_finish(finish: &Finish) -> Option<Self> {
        let status = finish.status_code?;
        let message = finish
            .message
            .clone()
            .unwrap_or_else(|| "the worker aborted the request".to_owned());
        let error = ApiError::from_worker_status(status, message);
        Some(Self(retry_hint(error)))
    }

    /// A worker that did not run an administrative operation.
    pub fn of_operation(name: &str, error: &EngineError) -> Self {
        if error.status_class() != StatusClass::Unimplemented {
            return error.into();
        }
        let message = format!("the worker does not have the operation {name}");
        ApiError::not_implemented(message).into()
    }

    /// The end of a stream: the error in the shape of an event.
    pub fn sse_event(&self) -> String {
        self.0.sse_event()
    }

    pub fn code(&self) -> &str {
        &self.0.code
    }
}

fn retry_hint(error: ApiError) -> ApiError {
    match error.status {
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS => {
            error.with_retry_after(RETRY_AFTER)
        }
        _ => error,
    }
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        Self::from(&error)
    }
}

impl From<&EngineError> for Failure {
    fn from(error: &EngineError) -> Self {
        let (status, code) = match (error.status_class(), error) {
            (StatusClass::InvalidArgument, _) => (StatusCode::BAD_REQUEST, "invalid_value"),
            (StatusClass::Unauthenticated, _) => (StatusCode::UNAUTHORIZED, "worker_refused"),
            (StatusClass::PermissionDenied, _) => (StatusCode::FORBIDDEN, "worker_refused"),
            (StatusClass::NotFound, _) => (StatusCode::NOT_FOUND, "not_found"),
            (StatusClass::Conflict, _) => (StatusCode::CONFLICT, "conflict"),
            // Its queue is full; the client is not at fault.
            (StatusClass::ResourceExhausted, _) => (StatusCode::SERVICE_UNAVAILABLE, "worker_overloaded"),
            (StatusClass::Unimplemented, _) => (StatusCode::NOT_IMPLEMENTED, "not_implemented"),
            (StatusClass::Deadline, _) => (StatusCode::GATEWAY_TIMEOUT, "timeout"),
            (StatusClass::Cancelled, _) => (StatusCode::BAD_GATEWAY, "worker_failed"),
            // The worker was lost in the middle; where it was never reached, another time may do.
            (StatusClass::Unavailable, EngineError::Disconnected { .. }) => {
                (StatusCode::BAD_GATEWAY, "worker_failed")
            }
            (StatusClass::Unavailable, _) => (StatusCode::SERVICE_UNAVAILABLE, "worker_unavailable"),
            (StatusClass::Internal, _) => (StatusCode::INTERNAL_SERVER_ERROR, "worker_failed"),
        };
        // The worker's own words are for the client; its address is for the log.
        tracing::debug!(%error, "worker error");
        Self(retry_hint(ApiError::new(status, code, error.message())))
    }
}

impl From<TokenizerError> for Failure {
    fn from(error: TokenizerError) -> Self {
        Self(ApiError::internal(format!("cannot tokenize: {error}")).with_code("tokenization_failed"))
    }
}

impl From<DecodeError> for Failure {
    fn from(error: DecodeError) -> Self {
        Self(
            ApiError::internal(format!("cannot turn tokens into text: {error}"))
                .with_code("detokenization_failed"),
        )
    }
}

impl From<StopError> for Failure {
    fn from(error: StopError) -> Self {
        let (field, message) = match &error {
            StopError::EmptyStop => ("stop", error.to_string()),
            StopError::Invalid { pattern, reason } => {
                // The parser draws the pattern; its last line says what is wrong with it.
                let why = reason.lines().last().unwrap_or_default();
                let why = why.trim_start_matches("error: ");
                let message = format!("stop_regex `{}` is not valid: {why}", clip(pattern));
                ("stop_regex", message)
            }
            StopError::MatchesEmpty { pattern } => {
                let message = format!(
                    "stop_regex `{}` matches the empty text, so it would stop before the first token; require a \
                     character",
                    clip(pattern)
                );
                ("stop_regex", message)
            }
            StopError::TooLarge { .. } => ("stop_regex", error.to_string()),
        };
        Self(ApiError::bad_request(field, message))
    }
}

impl From<TemplateError> for Failure {
    fn from(error: TemplateError) -> Self {
        Self(ApiError::bad_request("messages", error.to_string()))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let body = self.0.to_json();
        let mut response =
            (self.0.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        let headers = response.headers_mut();
        if let Ok(code) = HeaderValue::from_str(&self.0.code) {
            headers.insert(ERROR_CODE_HEADER, code);
        }
        if let Some(seconds) = self.0.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
