//! Parts of a request's URL. axum answers what it cannot read in plain text; these answer as every error does.
#![expect(
    clippy::disallowed_types,
    reason = "the one place that turns the rejections of axum's extractors into errors"
)]

use std::collections::HashMap;

use axum::extract::{FromRequestParts, Path, Query};
use http::{StatusCode, request::Parts};
use smg_api::{ApiError, clip};

use crate::error::Failure;

/// The one parameter of a route's path.
pub struct PathText(pub String);

/// The pairs of the query; of a key that is given twice the last one.
pub struct QueryPairs(pub HashMap<String, String>);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(text)) => Ok(Self(text)),
            Err(why) => Err(unreadable(
                "path",
                parts.uri.path(),
                why.status(),
                &why.body_text(),
            )),
        }
    }
}

impl<S: Send + Sync> FromRequestParts<S> for QueryPairs {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Failure> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(pairs)) => Ok(Self(pairs)),
            Err(why) => {
                let given = parts.uri.query().unwrap_or_default();
                Err(unreadable("query", given, why.status(), &why.body_text()))
            }
        }
    }
}

/// Of a path without a route, which no extractor reads: what is wrong with its text, if anything is.
pub fn unreadable_path(path: &str) -> Option<Failure> {
    let bytes = percent_decoded(path);
    let why = std::str::from_utf8(&bytes).err()?;
    Some(unreadable(
        "path",
        path,
        StatusCode::BAD_REQUEST,
        &why.to_string(),
    ))
}

fn percent_decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        let escaped = digits.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        match escaped.filter(|_| first == b'%') {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[2..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    bytes
}

fn unreadable(part: &'static str, given: &str, status: StatusCode, why: &str) -> Failure {
    let code = if status.is_server_error() {
        "internal_error"
    } else {
        "invalid_url"
    };
    let message = format!(
        "the {part} of the URL must be UTF-8, percent-encoded, got `{}`: {why}",
        clip(given)
    );
    ApiError::new(status, code, message).with_param(part).into()
}

#[cfg(test)]
mod tests {
    use axum::{Router, body::Body, extract::Request, routing::get};
    use http_body_util::BodyExt;
    use tower::ServiceExt;

    use super::*;

    async fn echo(PathText(text): PathText, QueryPairs(pairs): QueryPairs) -> String {
        format!("{text} {pairs:?}")
    }

    async fn answer(uri: &str) -> (u16, String) {
        let app: Router = Router::new().route("/things/{*id}", get(echo));
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        let response = app.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn what_can_be_read_passes() {
        assert_eq!(answer("/things/a%2Fb").await, (200, "a/b {}".to_owned()));
        // Bytes that are no text stand as a question mark: the pair's reader refuses them by name.
        let (status, text) = answer("/things/a?timeout=%ff").await;
        assert_eq!((status, &*text), (200, "a {\"timeout\": \"\u{fffd}\"}"));
    }

    #[test]
    fn a_path_without_a_route_is_read_too() {
        for path in ["/", "/caf%C3%A9", "/100%", "/%zz", "/%+1"] {
            assert!(unreadable_path(path).is_none(), "{path}");
        }
        for path in ["/%ff", "/a/%C3"] {
            let error = unreadable_path(path).unwrap().0;
            assert_eq!(
                (error.status.as_u16(), &*error.code),
                (400, "invalid_url"),
                "{path}"
            );
        }
    }

    #[tokio::test]
    async fn bytes_that_are_no_text_are_refused_in_the_shape_of_every_error() {
        let (status, body) = answer("/things/%ff%fe").await;
        assert_eq!(status, 400);
        let error: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(error["error"]["code"], "invalid_url");
        assert_eq!(error["error"]["param"], "path");
        assert!(body.contains("%ff%fe") && body.contains("`id`"), "{body}");
    }
}
