//! `/tokenize` and `/detokenize`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use smg_api::{
    ApiError, DetokenizeRequest, DetokenizeResponse, OneOrMany, TokenizeInput, TokenizeRequest,
    TokenizeResponse, sampling::check_token_id,
};

use super::{Incoming, json};
use crate::{
    context::Context,
    error::Failure,
    pipeline::{BLOCKING_BYTES, render_chat},
    workers::Served,
};

pub async fn tokenize(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::json(request)?;
    let request = TokenizeRequest::parse(&incoming.body)?;
    let served = cx.fleet.served(request.model.as_deref())?;
    json(&compute(&cx, &incoming, move || encode(&served, request)).await?)
}

pub async fn detokenize(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::json(request)?;
    let request = DetokenizeRequest::parse(&incoming.body)?;
    let served = cx.fleet.served(request.model.as_deref())?;
    json(&compute(&cx, &incoming, move || decode(&served, request)).await?)
}

/// Runs long work on a thread of its own, so that other requests go on.
async fn compute<T: Send + 'static>(
    cx: &Context,
    incoming: &Incoming,
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    if incoming.body.len() < BLOCKING_BYTES {
        return work();
    }
    let done = cx.tasks.spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("the work was interrupted: {error}")))?
}

fn encode(served: &Served, request: TokenizeRequest) -> Result<TokenizeResponse, Failure> {
    let tokenizer = &served.tokenizer;
    let max_model_len = Some(served.info.max_context_length).filter(|length| *length > 0);
    let (texts, special, is_list) = match request.input {
        TokenizeInput::Prompts(OneOrMany::One(text)) => (vec![text], request.add_special_tokens, false),
        TokenizeInput::Prompts(OneOrMany::Many(texts)) => (texts, request.add_special_tokens, true),
        TokenizeInput::Chat { messages, template } => {
            // The template writes its own special tokens.
            (vec![render_chat(tokenizer, &messages, &template)?], false, false)
        }
    };
    let tokens = texts
        .iter()
        .map(|text| tokenizer.encode(text, special))
        .collect::<Result<Vec<_>, _>>()?;
    let count = tokens.iter().map(Vec::len).collect();
    let char_count = texts.iter().map(|text| text.chars().count()).collect();
    Ok(TokenizeResponse {
        tokens: shape(tokens, is_list),
        count: shape(count, is_list),
        char_count: shape(char_count, is_list),
        max_model_len,
    })
}

/// A list stays one; the answer to a single value is a single value.
fn shape<T>(mut values: Vec<T>, is_list: bool) -> OneOrMany<T> {
    match values.pop() {
        Some(only) if !is_list => OneOrMany::One(only),
        last => OneOrMany::Many(values.into_iter().chain(last).collect()),
    }
}

fn decode(served: &Served, request: DetokenizeRequest) -> Result<DetokenizeResponse, Failure> {
    let skip = request.skip_special_tokens;
    let one = |ids: Vec<u32>| -> Result<String, Failure> {
        if let Some(&highest) = ids.iter().max() {
            check_token_id("tokens", highest, served.vocab_size())?;
        }
        Ok(served.tokenizer.decode(&ids, skip)?)
    };
    let text = match request.tokens {
        OneOrMany::One(ids) => OneOrMany::One(one(ids)?),
        OneOrMany::Many(lists) => OneOrMany::Many(lists.into_iter().map(one).collect::<Result<_, _>>()?),
    };
    Ok(DetokenizeResponse { text })
}
