//! Wire types of the public HTTP API: what a body may hold, what an answer looks like, how an error reads.
//!
//! Pure data: bytes are parsed into requests that need no further checking, and answers are structs whose
//! field order is the key order on the wire. Nothing here knows of sockets, workers or tokenizers.
//!
//! # Layout
//!
//! - `body`: bytes → fields, with errors that name the field.
//! - `clip`: how much of a client's value an error repeats.
//! - `unsupported`: the one table of options that this version refuses.
//! - `constraint`: what an answer must match.
//! - [`sampling`]: the knobs that all three generating endpoints share.
//! - [`chat`], [`completions`], [`generate`]: one folder per endpoint, request and response.
//! - `routing`, `session`: how a request is named and placed, and what it continues.
//! - [`embeddings`]: vectors of prompts.
//! - [`tokenize`], [`models`], [`usage`], [`logprobs`]: the smaller types.
//! - [`error`]: [`ApiError`] and its only rendering.

mod body;
pub mod chat;
mod clip;
pub mod completions;
mod constraint;
pub mod embeddings;
pub mod error;
pub mod generate;
pub mod limits;
pub mod logprobs;
pub mod models;
mod routing;
pub mod sampling;
mod session;
mod shapes;
#[cfg(test)]
mod tests;
pub mod tokenize;
mod unsupported;
pub mod usage;

pub use chat::{
    CallForm, CalledFunction, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatMessage,
    ChatRequest, TemplateOptions, ToolCall, ToolCallDelta,
};
pub use clip::clip;
pub use completions::{
    Completion, CompletionChoice, CompletionChunk, CompletionChunkChoice, CompletionLogprobs,
    CompletionRequest,
};
pub use constraint::Constraint;
pub use embeddings::{
    EmbeddingItem, EmbeddingList, EmbeddingRequest, EmbeddingUsage, Encoded, EncodedInfo, Vector,
};
pub use error::{ApiError, ErrorKind};
pub use generate::{
    GenerateFinish, GenerateRequest, GenerateResponse, LogprobRequest, LogprobTriple, MetaInfo, PromptItem,
    Timings,
};
pub use logprobs::{ChatLogprobs, TokenLogprob, TopLogprob};
pub use models::{ModelCard, ModelList};
pub use routing::Routing;
pub use sampling::Sampling;
pub use session::{CloseSession, OpenSession, SessionParams};
pub use shapes::{OneOrMany, Prompt};
pub use tokenize::{DetokenizeRequest, DetokenizeResponse, TokenizeInput, TokenizeRequest, TokenizeResponse};
pub use usage::{
    CachedTokensDetails, Chunk, ChunkChoice, FinishReason, MatchedStop, PromptTokensDetails, StreamOptions,
    Usage, WholeAnswer, WholeChoice,
};
