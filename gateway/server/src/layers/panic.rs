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
    Failure(ApiError::internal(
        "internal error; the server's log has the details",
    ))
    .into_response()
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, extract::Request, routing::get};
    use http_body_util::BodyExt;
    use tower::ServiceExt;
    use tower_http::catch_panic::CatchPanicLayer;

    use super::*;

    async fn broken() -> &'static str {
        panic!("secret detail")
    }

    #[tokio::test]
    async fn a_panic_is_answered_and_its_words_stay_inside() {
        let app: Router = Router::new()
            .route("/", get(broken))
            .layer(CatchPanicLayer::custom(answer));
        let response = app.oneshot(Request::new(Body::empty())).await.unwrap();
        assert_eq!(response.status(), 500);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let text = std::str::from_utf8(&body).unwrap();
        assert!(
            text.contains("internal_error") && !text.contains("secret"),
            "{text}"
        );
    }
}
