//! The way of a generation: five steps, each taking the type that the last one made.

pub mod call;
mod decoding;
mod detokenise;
mod dispatch;
mod prepare;
mod respond;
mod route;

use std::sync::Arc;

use axum::response::Response;

pub use self::{
    call::{
        Answer, CallId, Counts, End, Events, GenerateCall, Head, Input, LogprobWish, PromptCall, Render,
        TextDelta, Timing,
    },
    prepare::{BLOCKING_BYTES, render_chat},
};
use crate::{context::Context, error::Failure, workers::Standing};

pub async fn run(cx: &Arc<Context>, call: GenerateCall) -> Result<Response, Failure> {
    let prepared = prepare::run(cx, call).await?; // template, tokenise, check lengths → Prepared
    let routed = route::run(cx, prepared)?; //        a worker for each prompt          → Routed
    let tokens = dispatch::run(cx, routed); //        gRPC, retries, abort on drop      → TokenStreams
    let text = detokenise::run(tokens); //            ids → text, stop strings          → TextStream
    respond::run(text).await //                       SSE, or fold to one JSON body
}

/// What a call with one prompt would get now: its model, and how the workers stand. Nothing is generated.
pub async fn explain(cx: &Arc<Context>, call: GenerateCall) -> Result<(Arc<str>, Standing), Failure> {
    let prepared = prepare::run(cx, call).await?;
    let standing = route::explain(cx, &prepared)?;
    Ok((prepared.head.model, standing))
}
