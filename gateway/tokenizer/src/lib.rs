//! Text in and out of the gateway: token ids of a prompt, chat templates, incremental decoding, stop strings.
//!
//! The way of a request: [`ChatTemplate::render`] → [`Tokenizer::encode`] → (engine) →
//! [`IncrementalDecoder::push`] → [`StopMatcher::push`].
//!
//! # Layout
//!
//! | file | what lives there |
//! |---|---|
//! | `files` | [`TokenizerFiles`]: the files of a model that this crate reads, from a folder or from a bundle |
//! | `tokenizer` | [`Tokenizer`]: encode, decode, vocabulary, end-of-sequence ids |
//! | `bytes` | the bytes that each token stands for, and which tokens are special |
//! | `decode` | [`IncrementalDecoder`]: token ids to text that can no longer change |
//! | `stop` | [`StopMatcher`]: cuts text at stop strings and stop regexes |
//! | `template` | [`ChatTemplate`]: messages to prompt text, as the reference renderer does |
//! | `error` | the errors of this crate |

mod bytes;
mod decode;
mod error;
mod files;
mod stop;
mod template;
mod tokenizer;

pub use decode::IncrementalDecoder;
pub use error::{DecodeError, StopError, TemplateError, TokenizerError};
pub use files::TokenizerFiles;
pub use stop::{REGEX_WINDOW, StopMatcher, StopProgress};
pub use template::{ChatTemplate, RenderInput};
pub use tokenizer::Tokenizer;
