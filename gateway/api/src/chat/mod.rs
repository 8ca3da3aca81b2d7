//! `/v1/chat/completions`: request, answer and chunks.

mod calls;
mod messages;
mod request;
mod response;
mod tools;

pub use calls::CallForm;
pub use request::{ChatRequest, TemplateOptions};
pub use response::{
    CalledFunction, ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatDelta, ChatMessage, ToolCall,
    ToolCallDelta,
};

pub(crate) use messages::{RawMessage, normalize};
pub(crate) use tools::Asked;
