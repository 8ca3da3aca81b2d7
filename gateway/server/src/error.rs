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

/// The code of an error about a session that is not open.
pub const SESSION_NOT_FOUND: &str = "session_not_found";

/// The field that names a session.
pub const SESSION_ID: &str = "session_params.id";

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
        Some(Self(retry_hint(in_workers_words(error))))
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

/// The roots of the fields that the messages of workers begin with.
const WORKER_FIELDS: [&str; 18] = [
    "capacity_of_str_len",
    "custom_logit_processor",
    "custom_params",
    "ebnf",
    "json_schema",
    "logprob_start_len",
    "mode",
    "regex",
    "rid",
    "sampling_params",
    "session_id",
    "session_params",
    "stop",
    "streaming",
    "structural_tag",
    "timeout",
    "token_ids_logprob",
    "top_logprobs_num",
];

/// A worker's refusal names its field as the first word of the message.
fn in_workers_words(error: ApiError) -> ApiError {
    if !matches!(error.status, StatusCode::BAD_REQUEST | StatusCode::NOT_FOUND) {
        return error;
    }
    let Some(field) = leading_field(&error.message).map(str::to_owned) else {
        return error;
    };
    let is_session = error.status == StatusCode::NOT_FOUND && field == SESSION_ID;
    let error = error.with_param(field);
    if is_session {
        error.with_code(SESSION_NOT_FOUND)
    } else {
        error
    }
}

fn leading_field(message: &str) -> Option<&str> {
    let is_outside = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.');
    let word = message.split(is_outside).next()?.trim_end_matches('.');
    let root = word.split('.').next()?;
    WORKER_FIELDS.contains(&root).then_some(word)
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
        Self(retry_hint(in_workers_words(ApiError::new(
            status,
            code,
            error.message(),
        ))))
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

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self(ApiError::internal(format!(
            "the answer cannot be written: {error}"
        )))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(status: u16, message: &str) -> ApiError {
        in_workers_words(ApiError::from_worker_status(status, message))
    }

    #[test]
    fn the_field_that_a_workers_message_begins_with_is_its_param() {
        for (message, param) in [
            (
                "session_params.rid 'x' is no request of session 's'",
                Some("session_params.rid"),
            ),
            (
                "session_params.offset must be in 0 … 4",
                Some("session_params.offset"),
            ),
            (
                "custom_logit_processor failed: ValueError",
                Some("custom_logit_processor"),
            ),
            (
                "sampling_params.logit_bias: keys are token ids",
                Some("sampling_params.logit_bias"),
            ),
            ("rid 'x' is a request of session 's' already", Some("rid")),
            ("stop or stop_regex cannot be used", Some("stop")),
            ("sampling_params", Some("sampling_params")),
            ("Structured output (regex) is not served here", None),
            ("sampling_parameters are wrong", None),
            ("session 's' keeps 1000 requests", None),
            ("…", None),
            ("", None),
        ] {
            assert_eq!(refused(400, message).param.as_deref(), param, "{message}");
        }
        assert_eq!(refused(500, "rid 'x' broke the worker").param, None);
    }

    #[test]
    fn a_session_that_the_worker_does_not_have_is_not_found() {
        let gone = refused(404, "session_params.id 's' is not an open session");
        assert_eq!(
            (gone.code.as_ref(), gone.param.as_deref()),
            (SESSION_NOT_FOUND, Some(SESSION_ID))
        );
        assert_eq!(refused(404, "no such thing").code, "not_found");
        assert_eq!(
            refused(400, "session_params.id 's' is wrong").code,
            "invalid_value"
        );
    }
}
