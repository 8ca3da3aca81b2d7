//! Validates a call against the model: template, token ids, lengths, defaults.

use std::{sync::Arc, time::SystemTime};

use serde_json::Value;
use smg_api::{
    ApiError, Routing, Sampling, SessionParams, TemplateOptions, clip, limits::MAX_PROMPT_LOGPROBS,
    sampling::check_token_id,
};
use smg_engine_client::{GenerateSpec, ModelInfo};
use smg_tokenizer::{RenderInput, Tokenizer};

use super::{
    call::{CallId, GenerateCall, Head, Input, PromptCall, PromptHead, Render},
    decoding::Decoding,
};
use crate::{
    admin::adapters,
    context::Context,
    error::Failure,
    live::LiveGuard,
    telemetry::GenerationLabels,
    workers::{Affinity, Served, SessionUse},
};

/// Bodies from this size on are tokenized on a thread of their own, so that other requests go on.
pub const BLOCKING_BYTES: usize = 16 << 10;

/// A call that fits the model.
pub struct Prepared {
    pub head: Head,
    pub stream: bool,
    pub render: Box<dyn Render>,
    pub labels: GenerationLabels,
    pub prompts: Vec<PreparedPrompt>,
}

/// One prompt that fits the model.
pub struct PreparedPrompt {
    pub spec: GenerateSpec,
    pub decoding: Decoding,
    pub live: LiveGuard,
    /// The worker gets the id as it is; other ids get a suffix, as clients may send them twice.
    pub is_rid: bool,
    /// The session that it continues: only the worker that keeps it can serve it.
    pub session: Option<SessionUse>,
    pub affinity: Affinity,
}

/// A prompt's ids, and its text where it is repeated.
struct Encoded {
    ids: Vec<u32>,
    echo: Option<String>,
}

pub async fn run(cx: &Arc<Context>, call: GenerateCall) -> Result<Prepared, Failure> {
    let (served, adapter) = served(cx, call.model.as_deref()).await?;
    let (mut wishes, inputs) = split(call.prompts);
    for wish in &mut wishes {
        let named = wish.routing.lora_path.take();
        wish.routing.lora_path = named.or_else(|| adapter.map(str::to_owned));
    }
    check_constraints(cx, &wishes, &served)?;
    let encoded = encode(cx, &served, inputs, call.body.len()).await?;
    drop(call.body);
    check_prompt_logprobs(&wishes, &encoded)?;
    let mut heads = Vec::with_capacity(wishes.len());
    let mut prompts = Vec::with_capacity(wishes.len());
    let n = wishes.first().map_or(1, |wish| wish.sampling.n as usize);
    for (wish, encoded) in wishes.into_iter().zip(encoded) {
        check_lengths(&wish, encoded.ids.len(), &served.info)?;
        check_ids(&wish, &encoded.ids, &served)?;
        heads.push(PromptHead {
            id: wish.id.value.clone(),
            num_tokens: u32::try_from(encoded.ids.len()).unwrap_or(u32::MAX),
            echo: encoded.echo,
        });
        prompts.push(prompt(cx, wish, encoded.ids, &served, &call.trace)?);
    }
    let labels = GenerationLabels {
        model: served.model.clone().into(),
        endpoint: call.endpoint,
        streaming: call.stream,
    };
    let head = Head {
        id: call.id,
        model: served.model.clone(),
        weight_version: served.info.weight_version.clone(),
        tokenizer: served.tokenizer.clone(),
        created: unix_seconds(),
        started: call.arrived,
        span: call.span,
        n,
        prompts: heads,
    };
    Ok(Prepared {
        head,
        stream: call.stream,
        render: call.render,
        labels,
        prompts,
    })
}

/// What is served under `model`: a model, `MODEL:ADAPTER`, or the name of an adapter alone.
async fn served<'a>(cx: &Context, model: Option<&'a str>) -> Result<(Arc<Served>, Option<&'a str>), Failure> {
    let found = cx.fleet.served_with_adapter(model);
    let (Err(_), Some(name)) = (&found, model) else {
        return found;
    };
    match adapters::model_with(cx, name).await {
        Some(served) => Ok((served, Some(name))),
        None => found,
    }
}

fn unix_seconds() -> u64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |age| age.as_secs())
}

/// A prompt's wishes without its input, which moves to the tokenizer.
struct Wish {
    id: CallId,
    field: &'static str,
    sampling: Sampling,
    logprobs: Option<super::LogprobWish>,
    routing: Routing,
}

struct PromptInput {
    input: Input,
    echo: bool,
    /// It goes on from other tokens, so nothing marks its beginning.
    continues: bool,
}

fn split(prompts: Vec<PromptCall>) -> (Vec<Wish>, Vec<PromptInput>) {
    prompts
        .into_iter()
        .map(|p| {
            let field = p.input.field();
            let session = p.routing.session.as_ref();
            let continues = session.is_some_and(|session| session.rid.is_some());
            let wish = Wish {
                id: p.id,
                field,
                sampling: p.sampling,
                logprobs: p.logprobs,
                routing: p.routing,
            };
            (
                wish,
                PromptInput {
                    input: p.input,
                    echo: p.echo,
                    continues,
                },
            )
        })
        .unzip()
}

// ---------------------------------------------------------------- text → ids

async fn encode(
    cx: &Context,
    served: &Arc<Served>,
    inputs: Vec<PromptInput>,
    body_len: usize,
) -> Result<Vec<Encoded>, Failure> {
    let encoder = Encoder {
        tokenizer: served.tokenizer.clone(),
        context: served.info.max_context_length as usize,
    };
    let work = move || inputs.into_iter().map(|input| encoder.encode(input)).collect();
    if body_len < BLOCKING_BYTES {
        return work();
    }
    let done = cx.tasks.spawn_blocking(work).await;
    done.map_err(|error| ApiError::internal(format!("tokenizing was interrupted: {error}")))?
}

struct Encoder {
    tokenizer: Tokenizer,
    /// 0: unknown.
    context: usize,
}

impl Encoder {
    fn encode(&self, prompt: PromptInput) -> Result<Encoded, Failure> {
        match prompt.input {
            Input::Chat { messages, template } => {
                let text = render_chat(&self.tokenizer, &messages, &template)?;
                let ids = self.ids("messages", &text, false)?;
                Ok(Encoded { ids, echo: None })
            }
            Input::Text { text, field } => {
                let ids = self.ids(field, &text, !prompt.continues)?;
                let echo = prompt.echo.then_some(text);
                Ok(Encoded { ids, echo })
            }
            Input::Ids { ids, .. } => {
                let echo = prompt
                    .echo
                    .then(|| self.tokenizer.decode(&ids, true))
                    .transpose()?;
                Ok(Encoded { ids, echo })
            }
        }
    }

    /// Tokenizing takes about ninety times the text's memory, so a text that cannot fit is refused by its bytes.
    fn ids(&self, field: &'static str, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, Failure> {
        let most = self.tokenizer.most_bytes(self.context);
        if self.context > 0 && text.len() > most {
            let message = format!(
                "The input ({} bytes) is longer than the model's context length ({} tokens, at most {most} bytes).",
                text.len(),
                self.context
            );
            return Err(ApiError::context_length_exceeded(field, message).into());
        }
        Ok(self.tokenizer.encode(text, add_special_tokens)?)
    }
}

/// The prompt text of a chat.
pub fn render_chat(
    tokenizer: &Tokenizer,
    messages: &Value,
    options: &TemplateOptions,
) -> Result<String, Failure> {
    let template = tokenizer.chat_template().ok_or_else(|| {
        let message = "this model has no chat template; use /v1/completions, or start with --chat-template";
        ApiError::bad_request("messages", message).with_code("no_chat_template")
    })?;
    let input = RenderInput {
        messages,
        tools: options.tools.as_ref(),
        add_generation_prompt: options.add_generation_prompt,
        continue_final_message: options.continue_final_message,
        kwargs: &options.kwargs,
    };
    Ok(template.render(&input)?)
}

// ---------------------------------------------------------------- checks

fn check_lengths(wish: &Wish, num_tokens: usize, info: &ModelInfo) -> Result<(), Failure> {
    let context = info.max_context_length as usize;
    if num_tokens == 0 {
        return Err(ApiError::bad_request(wish.field, format!("{} has no tokens", wish.field)).into());
    }
    if context == 0 {
        return Ok(());
    }
    if num_tokens >= context {
        let message = format!(
            "The input ({num_tokens} tokens) is longer than the model's context length ({context} tokens)."
        );
        return Err(ApiError::context_length_exceeded(wish.field, message).into());
    }
    let answer = wish.sampling.max_new_tokens.unwrap_or(0) as usize;
    if num_tokens + answer > context {
        let field = wish.sampling.max_field;
        let message = format!(
            "Requested token count exceeds the model's maximum context length of {context} tokens: {num_tokens} \
             tokens of input and {field} = {answer} of output make {}; at most {} tokens of output fit",
            num_tokens + answer,
            context - num_tokens,
        );
        return Err(ApiError::context_length_exceeded(field, message).into());
    }
    Ok(())
}

fn check_ids(wish: &Wish, ids: &[u32], served: &Served) -> Result<(), Failure> {
    let vocab_size = served.vocab_size();
    // The tokenizer's own ids are checked too: a worker must not get an id that its model lacks.
    if let Some(&highest) = ids.iter().max() {
        check_token_id(wish.field, highest, vocab_size)?;
    }
    wish.sampling.check_vocabulary(vocab_size)?;
    let chosen = wish.logprobs.iter().flat_map(|logprobs| &logprobs.token_ids);
    for &id in chosen {
        check_token_id("token_ids_logprob", id, vocab_size)?;
    }
    let start = wish
        .logprobs
        .as_ref()
        .map_or(-1, |logprobs| i64::from(logprobs.start_len));
    if start > ids.len() as i64 {
        let message = format!(
            "logprob_start_len is {start}, but the prompt has {} tokens",
            ids.len()
        );
        return Err(ApiError::bad_request("logprob_start_len", message).into());
    }
    Ok(())
}

/// Refuses what our grammar backends do not honour, unless a worker may have another one.
fn check_constraints(cx: &Context, wishes: &[Wish], served: &Served) -> Result<(), Failure> {
    let mut unhonoured = wishes.iter().filter_map(|wish| wish.sampling.unhonoured.clone());
    match unhonoured.next() {
        Some(error) if cx.fleet.has_own_grammar_backends(&served.model) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Bounds what the answers of a call report about their prompts: width × positions × n, over all prompts.
fn check_prompt_logprobs(wishes: &[Wish], encoded: &[Encoded]) -> Result<(), Failure> {
    let mut total = 0u64;
    for (wish, encoded) in wishes.iter().zip(encoded) {
        let Some(logprobs) = &wish.logprobs else { continue };
        // -1 reports no position of the prompt.
        let Ok(start) = usize::try_from(logprobs.start_len) else {
            continue;
        };
        let positions = encoded.ids.len().saturating_sub(start) as u64;
        let (top, num_ids) = (u64::from(logprobs.top), logprobs.token_ids.len() as u64);
        let n = u64::from(wish.sampling.n);
        total = total.saturating_add((top + num_ids).saturating_mul(positions).saturating_mul(n));
        if total <= MAX_PROMPT_LOGPROBS {
            continue;
        }
        let field = if num_ids > top {
            "token_ids_logprob"
        } else {
            logprobs.field
        };
        let message = format!(
            "{field} asks for {total} log probabilities of prompt tokens ({top} likeliest and {num_ids} chosen ones \
             at {positions} positions, n = {n}), allowed are {MAX_PROMPT_LOGPROBS} in one request; ask for fewer, or \
             for fewer positions"
        );
        return Err(ApiError::bad_request(field, message).into());
    }
    Ok(())
}

// ---------------------------------------------------------------- what the worker gets

fn prompt(
    cx: &Context,
    wish: Wish,
    ids: Vec<u32>,
    served: &Served,
    trace: &[(String, String)],
) -> Result<PreparedPrompt, Failure> {
    let group = wish.id.group.as_deref();
    let live = cx
        .live
        .enter(&wish.id.value, wish.id.is_rid, group)
        .map_err(|_| {
            let message = format!("Duplicate request ID detected: {}", clip(&wish.id.value));
            ApiError::bad_request("rid", message).with_code("duplicate_request_id")
        })?;
    let remaining = remaining(ids.len(), &served.info);
    let decoding = Decoding::new(&wish.sampling, served, limit(&wish.sampling, remaining))?;
    let session = match &wish.routing.session {
        Some(params) => Some(cx.fleet.use_session(&params.id, &served.model)?),
        None => None,
    };
    let logprobs = wish.logprobs;
    let affinity = Affinity::of(&wish.routing);
    let spec = GenerateSpec {
        request_id: wish.id.value,
        input_ids: ids,
        sampling: sampling(wish.sampling, &served.info, remaining),
        return_logprob: logprobs.is_some(),
        logprob_start_len: logprobs.as_ref().map_or(-1, |wish| wish.start_len),
        top_logprobs_num: logprobs.as_ref().map_or(0, |wish| wish.top),
        token_ids_logprob: logprobs.map(|wish| wish.token_ids).unwrap_or_default(),
        extra_key: wish.routing.extra_key,
        cache_salt: wish.routing.cache_salt,
        lora_name: wish.routing.lora_path.unwrap_or_default(),
        priority: wish.routing.priority,
        routing_key: wish.routing.routing_key,
        session: wish.routing.session.map(session_of),
        custom_logit_processor: wish.routing.custom_logit_processor.unwrap_or_default(),
        require_reasoning: wish.routing.require_reasoning,
        trace: trace.to_vec(),
        ..GenerateSpec::default()
    };
    Ok(PreparedPrompt {
        spec,
        decoding,
        live,
        is_rid: wish.id.is_rid,
        session,
        affinity,
    })
}

fn session_of(params: SessionParams) -> smg_engine_client::Session {
    smg_engine_client::Session {
        id: params.id,
        rid: params.rid,
        offset: params.offset,
        replace: params.replace,
        drop_previous_output: params.drop_previous_output,
    }
}

/// Tokens of output that the context leaves; `None` where the worker does not tell its context.
fn remaining(num_tokens: usize, info: &ModelInfo) -> Option<u32> {
    let context = info.max_context_length as usize;
    (context > 0).then(|| u32::try_from(context.saturating_sub(num_tokens)).unwrap_or(u32::MAX))
}

/// The client's limit; where it named none the endpoint's, or less when the context leaves less.
fn limit(wish: &Sampling, remaining: Option<u32>) -> Option<u32> {
    wish.max_new_tokens
        .or(match (wish.default_max_new_tokens, remaining) {
            (Some(default), Some(remaining)) => Some(default.min(remaining)),
            (default, remaining) => default.or(remaining),
        })
}

fn constraint(wish: smg_api::Constraint) -> smg_engine_client::Constraint {
    use smg_api::Constraint as Wish;
    use smg_engine_client::Constraint;
    match wish {
        Wish::JsonSchema(schema) => Constraint::JsonSchema(schema),
        Wish::Regex(regex) => Constraint::Regex(regex),
        Wish::Ebnf(grammar) => Constraint::Ebnf(grammar),
        Wish::StructuralTag(tag) => Constraint::StructuralTag(tag),
    }
}

/// The client's values over the model's defaults over the built-in ones.
fn sampling(wish: Sampling, info: &ModelInfo, remaining: Option<u32>) -> smg_engine_client::Sampling {
    let model = |name: &str| {
        let value = info
            .preferred_sampling_params
            .get(name)
            .or_else(|| info.default_sampling_params.get(name));
        value.and_then(Value::as_f64)
    };
    let number = |given: Option<f32>, name: &str, built_in: f32| {
        given
            .or_else(|| model(name).map(|value| value as f32))
            .unwrap_or(built_in)
    };
    let top_k = wish.top_k.or_else(|| model("top_k").map(|value| value as i32));
    smg_engine_client::Sampling {
        temperature: number(wish.temperature, "temperature", 1.0),
        top_p: number(wish.top_p, "top_p", 1.0),
        // 0 is what some model publishers write for "off".
        top_k: top_k.filter(|k| *k != 0).unwrap_or(-1),
        min_p: number(wish.min_p, "min_p", 0.0),
        frequency_penalty: number(wish.frequency_penalty, "frequency_penalty", 0.0),
        presence_penalty: number(wish.presence_penalty, "presence_penalty", 0.0),
        repetition_penalty: number(wish.repetition_penalty, "repetition_penalty", 1.0),
        max_new_tokens: limit(&wish, remaining),
        min_new_tokens: wish.min_new_tokens,
        stop: wish.stop,
        stop_token_ids: wish.stop_token_ids,
        stop_regex: wish.stop_regex,
        ignore_eos: wish.ignore_eos,
        no_stop_trim: wish.no_stop_trim,
        skip_special_tokens: wish.skip_special_tokens,
        spaces_between_special_tokens: wish.spaces_between_special_tokens,
        n: wish.n,
        stream_interval: wish.stream_interval,
        logit_bias: wish.logit_bias.into_iter().collect(),
        seed: wish.seed,
        constraint: wish.constraint.map(constraint),
        custom_params: wish.custom_params,
    }
}
