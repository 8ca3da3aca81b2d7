//! Gives every request an id: the client's own from a header, else a fresh one. The answer carries it.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::Response,
};
use http::{HeaderMap, HeaderValue};
use smg_api::limits::MAX_RID_CHARS;
use uuid::Uuid;

use crate::context::Context;

pub const REQUEST_ID_HEADER: &str = "x-request-id";

/// The id of one request. Clients may send the same one twice.
#[derive(Clone, Debug)]
pub struct RequestId(pub Arc<str>);

pub async fn layer(State(cx): State<Arc<Context>>, mut request: Request, next: Next) -> Response {
    let id = find(request.headers(), &cx.request_id_headers)
        .unwrap_or_else(|| RequestId::generate(prefix_of(request.uri().path())));
    let header = HeaderValue::from_str(&id.0);
    request.extensions_mut().insert(id);
    let mut response = next.run(request).await;
    if let Ok(header) = header {
        response.headers_mut().insert(REQUEST_ID_HEADER, header);
    }
    response
}

// === impl RequestId ===

impl RequestId {
    pub fn generate(prefix: &str) -> Self {
        let mut buffer = Uuid::encode_buffer();
        let random = Uuid::new_v4().simple().encode_lower(&mut buffer);
        Self(format!("{prefix}{random}").into())
    }
}

fn find(headers: &HeaderMap, names: &[String]) -> Option<RequestId> {
    let given = names
        .iter()
        .find_map(|name| headers.get(name))?
        .to_str()
        .ok()?
        .trim();
    let usable = !given.is_empty() && given.len() <= MAX_RID_CHARS;
    usable.then(|| RequestId(given.into()))
}

fn prefix_of(path: &str) -> &'static str {
    match path {
        "/v1/chat/completions" => "chatcmpl-",
        "/v1/completions" => "cmpl-",
        "/generate" => "gnt-",
        _ => "req-",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Vec<String> {
        ["x-request-id", "x-correlation-id", "request-id"]
            .map(str::to_owned)
            .to_vec()
    }

    #[test]
    fn the_first_header_of_the_list_wins() {
        let mut headers = HeaderMap::new();
        headers.insert("request-id", HeaderValue::from_static("late"));
        headers.insert("x-correlation-id", HeaderValue::from_static("early"));
        assert_eq!(&*find(&headers, &names()).unwrap().0, "early");
    }

    #[test]
    fn an_id_that_is_too_long_is_replaced() {
        let mut headers = HeaderMap::new();
        headers.insert(
            "x-request-id",
            HeaderValue::from_str(&"a".repeat(MAX_RID_CHARS + 1)).unwrap(),
        );
        assert!(find(&headers, &names()).is_none());
    }

    #[test]
    fn generated_ids_differ() {
        assert_ne!(RequestId::generate("cmpl-").0, RequestId::generate("cmpl-").0);
    }
}
