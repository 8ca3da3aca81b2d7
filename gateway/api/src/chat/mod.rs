//! `/v1/chat/completions`: request, answer and chunks.

mod messages;
mod request;
mod response;

pub use request::{ChatRequest, TemplateOptions};
pub use response::{ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatMessage};

pub(crate) use messages::{RawMessage, normalize};
