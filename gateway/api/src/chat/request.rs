//! The request of `/v1/chat/completions`.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{Asked, CallForm, RawMessage, normalize};
use crate::body::Body;
use crate::error::ApiError;
use crate::limits::MAX_TOP_LOGPROBS;
use crate::routing::Routing;
use crate::sampling::{self, Sampling, require};
use crate::unsupported;
use crate::usage::{RawStreamOptions, StreamOptions};

/// A chat request that needs no further checking, apart from the model's own limits.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatRequest {
    /// As the client wrote it; the server knows which names it serves.
    pub model: Option<String>,
    /// A list of message objects as chat templates read them; `content` is always a string.
    pub messages: Value,
    pub template: TemplateOptions,
    /// The answer is calls of functions in this form, to which `sampling.constraint` holds it. `None`: it is text.
    pub calls: Option<CallForm>,
    /// `max_new_tokens` is `None` when the answer may fill the context.
    pub sampling: Sampling,
    pub logprobs: bool,
    /// Alternatives per token, 0 to 20; 0 without `logprobs`.
    pub top_logprobs: u32,
    pub stream: bool,
    pub stream_options: StreamOptions,
    /// The usage says from which tiers of the cache tokens came.
    pub return_cached_tokens_details: bool,
    pub routing: Routing,
}

/// How the chat template is rendered.
#[derive(Debug, Clone, PartialEq)]
pub struct TemplateOptions {
    /// The functions that the model is told of, as the client described them.
    pub tools: Option<Value>,
    /// Opens the assistant's turn after the messages.
    pub add_generation_prompt: bool,
    /// Lets the model go on with the last message instead of opening a new turn.
    pub continue_final_message: bool,
    /// Further variables of the template.
    pub kwargs: Map<String, Value>,
}

#[derive(Deserialize)]
struct RawChat {
    model: Option<String>,
    messages: Vec<RawMessage>,
    logprobs: Option<bool>,
    top_logprobs: Option<u32>,
    stream: Option<bool>,
    stream_options: Option<RawStreamOptions>,
    return_cached_tokens_details: Option<bool>,
}

impl ChatRequest {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = Body::parse(bytes)?;
        unsupported::check_chat(&body)?;
        let raw: RawChat = body.read()?;
        let stream = raw.stream.unwrap_or(false);
        let logprobs = raw.logprobs.unwrap_or(false);
        let top_logprobs = raw.top_logprobs.unwrap_or(0);
        let allowed = format!("from 0 to {MAX_TOP_LOGPROBS}");
        require(
            top_logprobs <= MAX_TOP_LOGPROBS,
            "top_logprobs",
            top_logprobs,
            &allowed,
        )?;
        if top_logprobs > 0 && !logprobs {
            let message = "top_logprobs is only allowed together with `logprobs: true`";
            return Err(ApiError::bad_request("top_logprobs", message));
        }
        let messages = normalize(raw.messages)?;
        let mut sampling = sampling::from_openai(&body, None)?;
        let asked = Asked::read(&body)?;
        let calls = asked
            .forced
            .map(|forced| forced.apply(&mut sampling))
            .transpose()?;
        Ok(Self {
            model: raw.model,
            template: TemplateOptions::read(&body, &messages, asked.shown)?,
            calls,
            messages,
            logprobs,
            top_logprobs,
            stream,
            stream_options: StreamOptions::check(raw.stream_options, stream)?,
            return_cached_tokens_details: raw.return_cached_tokens_details.unwrap_or(false),
            routing: Routing::one(&body, sampling.n)?,
            sampling,
        })
    }
}

#[derive(Deserialize)]
struct RawTemplate {
    add_generation_prompt: Option<bool>,
    continue_final_message: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
}

/// Variables that the request's own fields set.
const RESERVED_KWARGS: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "continue_final_message",
];

impl TemplateOptions {
    /// Reads the template's options from a body that also holds `messages`.
    pub(crate) fn read(body: &Body, messages: &Value, tools: Option<Value>) -> Result<Self, ApiError> {
        let raw: RawTemplate = body.read()?;
        let continue_final_message = raw.continue_final_message.unwrap_or(false);
        if continue_final_message && raw.add_generation_prompt == Some(true) {
            let message =
                "add_generation_prompt and continue_final_message exclude each other; set one of them";
            return Err(ApiError::bad_request("continue_final_message", message));
        }
        let last_role = messages
            .as_array()
            .and_then(|all| all.last())
            .and_then(|last| last["role"].as_str());
        if continue_final_message && last_role != Some("assistant") {
            let message = format!(
                "continue_final_message needs a last message of role `assistant`, got `{}`",
                last_role.unwrap_or_default()
            );
            return Err(ApiError::bad_request("continue_final_message", message));
        }
        let mut kwargs = raw.chat_template_kwargs.unwrap_or_default();
        if let Some(name) = RESERVED_KWARGS.iter().find(|name| kwargs.contains_key(**name)) {
            let param = format!("chat_template_kwargs.{name}");
            let message = format!("{param} is not allowed; the request's own fields set it");
            return Err(ApiError::bad_request(param, message));
        }
        if let Some(effort) = raw.reasoning_effort {
            kwargs.entry("reasoning_effort").or_insert(Value::String(effort));
        }
        Ok(Self {
            tools,
            add_generation_prompt: raw.add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            kwargs,
        })
    }
}
