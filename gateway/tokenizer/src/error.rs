//! What can go wrong with tokenizer files, templates, decoding and stops.

use thiserror::Error;

/// A tokenizer cannot be built from its files, or refuses a text.
#[derive(Debug, Error)]
pub enum TokenizerError {
    #[error("cannot read {path}: {source}; give a folder that holds tokenizer.json and is readable")]
    Unreadable { path: String, source: std::io::Error },
    #[error(
        "no tokenizer.json in {place}; allowed is a folder or bundle in the Hugging Face layout. \
         Convert the tokenizer (`AutoTokenizer.from_pretrained(…).save_pretrained(…)`) or point at the folder that has it"
    )]
    Missing { place: String },
    #[error("{file} is broken: {reason}; replace it with an intact copy from the model's publisher")]
    Broken { file: String, reason: String },
    #[error("the chat template in {file} cannot be used: {source}; correct it or give another template")]
    Template { file: String, source: TemplateError },
    #[error("cannot tokenize the text: {reason}")]
    Encode { reason: String },
    #[error("cannot decode the token ids: {reason}")]
    Decode { reason: String },
}

/// A chat template cannot be compiled, or does not accept a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TemplateError {
    /// The source is no valid template, or names a filter, test or function that does not exist.
    #[error("chat template does not compile: {0}")]
    Compile(String),
    /// The template itself refused the conversation through `raise_exception`.
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// The template failed on this conversation, for instance for want of a field.
    #[error("the chat template fails on these messages: {0}")]
    Render(String),
    /// The template did more work than any conversation needs.
    #[error(
        "the chat template ran for too long and was stopped; shorten the conversation or correct the template"
    )]
    TooLong,
    /// `continue_final_message` was asked for where there is nothing to continue.
    #[error("continue_final_message: {0}")]
    NothingToContinue(String),
    /// The messages are not what a template can be given.
    #[error("messages must be a list of objects, got {0}")]
    NotMessages(String),
}

/// A token id cannot be turned into text that follows the text so far.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    #[error("the tokenizer's decoder failed at token {id}: {reason}")]
    Decoder { id: u32, reason: String },
    #[error(
        "token {id} changes text that was already given out; the decoder in tokenizer.json cannot be streamed"
    )]
    Unstable { id: u32 },
}

/// A list of stops cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum StopError {
    #[error("a stop string is empty; give at least one character or leave it out")]
    EmptyStop,
    #[error("stop_regex {pattern:?} is not valid: {reason}")]
    Invalid { pattern: String, reason: String },
    #[error(
        "stop_regex {pattern:?} matches the empty text, so it would stop before the first token; require a character"
    )]
    MatchesEmpty { pattern: String },
    #[error("the stops are too large together: {reason}; use shorter repetitions or fewer stops")]
    TooLarge { reason: String },
}
