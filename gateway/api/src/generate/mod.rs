//! The native `/generate`: request and answer.

mod request;
mod response;

pub use request::{GenerateRequest, LogprobRequest, PromptItem};
pub use response::{GenerateFinish, GenerateResponse, LogprobTriple, MetaInfo, Timings};

pub(crate) use request::{check_batch, native_field, prompts_of};
