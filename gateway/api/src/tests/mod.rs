//! What the endpoints accept, refuse and write, table by table.

mod bad_input;
mod bad_prompts;
mod constraints;
mod good_input;
mod placing;
mod rendering;
mod schemas;
mod tools;

use http::StatusCode;

use crate::{ApiError, ChatRequest, CompletionRequest, DetokenizeRequest, GenerateRequest, TokenizeRequest};

/// A chat body with one more field, such as `"n": 2`.
fn chat(field: &str) -> Result<ChatRequest, ApiError> {
    let more = if field.is_empty() {
        String::new()
    } else {
        format!(",{field}")
    };
    ChatRequest::parse(
        format!(r#"{{"model":"demo","messages":[{{"role":"user","content":"Hi"}}]{more}}}"#).as_bytes(),
    )
}

fn messages(list: &str) -> Result<ChatRequest, ApiError> {
    ChatRequest::parse(format!(r#"{{"messages":{list}}}"#).as_bytes())
}

fn completion(fields: &str) -> Result<CompletionRequest, ApiError> {
    CompletionRequest::parse(format!("{{{fields}}}").as_bytes())
}

fn generate(fields: &str) -> Result<GenerateRequest, ApiError> {
    GenerateRequest::parse(format!("{{{fields}}}").as_bytes())
}

fn tokenize(fields: &str) -> Result<TokenizeRequest, ApiError> {
    TokenizeRequest::parse(format!("{{{fields}}}").as_bytes())
}

fn detokenize(fields: &str) -> Result<DetokenizeRequest, ApiError> {
    DetokenizeRequest::parse(format!("{{{fields}}}").as_bytes())
}

/// Expects a 400 that names `param` and says `words`.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, ApiError>, param: &str, words: &str) {
    let error = result.expect_err(param);
    assert_eq!(error.status, StatusCode::BAD_REQUEST, "{error:?}");
    assert_eq!(error.param.as_deref().unwrap_or(""), param, "{error:?}");
    assert!(error.message.contains(words), "{error:?}");
    assert!(error.message.len() < 1000, "{error:?}");
    assert!(
        !error.message.contains(" at line ") || error.code == "invalid_body",
        "{error:?}"
    );
}
