//! Turns a panic of a handler into a JSON 500, so that one bug costs one request.

use std::any::Any;

use axum::response::{IntoResponse, Response};
use smg_api::ApiError;

use crate::error::Failure;

pub fn answer(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message");
    tracing::error!(panic = text, "a request handler panicked");
    Failure(ApiError::internal("internal error; the server's log has the details")).into_response()
}
