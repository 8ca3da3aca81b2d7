//! Checks the keys of inference and admin routes.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{HeaderMap, StatusCode, header};
use smg_api::ApiError;
use subtle::ConstantTimeEq;

use crate::{context::Context, error::Failure};

/// Routes that need the API key, if there is one.
pub async fn layer(State(cx): State<Arc<Context>>, request: Request, next: Next) -> Response {
    with_key(cx.api_key.as_deref(), request, next).await
}

/// Routes that need the admin key if there is one, else the API key if there is one.
pub async fn admin(State(cx): State<Arc<Context>>, request: Request, next: Next) -> Response {
    let key = cx.admin_api_key.as_deref().or(cx.api_key.as_deref());
    with_key(key, request, next).await
}

/// Routes that nobody may use where there is no admin key.
pub async fn admin_only(State(cx): State<Arc<Context>>, request: Request, next: Next) -> Response {
    match cx.admin_api_key.as_deref() {
        Some(key) => with_key(Some(key), request, next).await,
        None => {
            let message =
                "this route needs an admin key, and the server has none; start it with --admin-api-key";
            let error = ApiError::new(StatusCode::FORBIDDEN, "admin_key_required", message);
            Failure(error).into_response()
        }
    }
}

async fn with_key(key: Option<&str>, request: Request, next: Next) -> Response {
    match key {
        Some(key) if !is_bearer(request.headers(), key) => Failure(ApiError::unauthorized()).into_response(),
        _ => next.run(request).await,
    }
}

fn is_bearer(headers: &HeaderMap, key: &str) -> bool {
    let given = headers.get(header::AUTHORIZATION).map(|value| value.as_bytes());
    let Some((scheme, token)) = given.and_then(|value| value.split_at_checked("Bearer ".len())) else {
        return false;
    };
    // The time of the comparison must not tell how much of the key was right.
    scheme.eq_ignore_ascii_case(b"Bearer ") && token.ct_eq(key.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_the_exact_key_passes() {
        let cases = [
            ("Bearer secret", true),
            ("bearer secret", true),
            ("Bearer secre", false),
            ("secret", false),
        ];
        for (given, passes) in cases {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, HeaderValue::from_static(given));
            assert_eq!(is_bearer(&headers, "secret"), passes, "{given}");
        }
        assert!(!is_bearer(&HeaderMap::new(), "secret"));
    }
}
