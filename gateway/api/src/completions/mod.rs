//! `/v1/completions`: request, answer and chunks.

mod request;
mod response;

pub use request::CompletionRequest;
pub use response::{
    Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice, CompletionLogprobs,
};
