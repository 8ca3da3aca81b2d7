//! The request of `/generate`, normalized to one item per prompt.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::body::Body;
use crate::error::ApiError;
use crate::limits::{MAX_ANSWERS, MAX_BATCH, MAX_NATIVE_TOP_LOGPROBS};
use crate::routing::{Routing, spread};
use crate::sampling::{self, Sampling, check_num_ids, require};
use crate::shapes::{OneOrMany, Prompt, TokenIds};
use crate::unsupported;

/// A native request that needs no further checking, apart from the model's own limits.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateRequest {
    pub model: Option<String>,
    /// Not empty; all items have the same `n`. Answers come in prompt order, samples of a prompt together.
    pub items: Vec<PromptItem>,
    /// The prompt was a list: the reply is a list, and chunks carry `index`.
    pub is_batch: bool,
    pub stream: bool,
    /// Puts the token's text in the third place of each logprob triple, which is null otherwise.
    pub return_text_in_logprobs: bool,
}

/// One prompt and how it is continued.
#[derive(Debug, Clone, PartialEq)]
pub struct PromptItem {
    pub prompt: Prompt,
    /// `max_new_tokens` or its default is set.
    pub sampling: Sampling,
    pub logprobs: Option<LogprobRequest>,
    pub routing: Routing,
}

/// Which log-probabilities are returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogprobRequest {
    /// First prompt position to report; −1 = answer only.
    pub start_len: i32,
    /// Likeliest tokens per position.
    pub top_num: u32,
    /// Tokens to report at every position, likely or not.
    pub token_ids: Vec<u32>,
}

#[derive(Deserialize)]
struct RawPrompt {
    model: Option<String>,
    text: Option<OneOrMany<String>>,
    input_ids: Option<TokenIds>,
    stream: Option<bool>,
    return_text_in_logprobs: Option<bool>,
}

#[derive(Deserialize)]
struct RawLogprobs {
    return_logprob: Option<OneOrMany<bool>>,
    logprob_start_len: Option<OneOrMany<i32>>,
    top_logprobs_num: Option<OneOrMany<u32>>,
    token_ids_logprob: Option<TokenIds>,
}

#[derive(Deserialize)]
struct RawParams<'a> {
    #[serde(borrow)]
    sampling_params: Option<&'a RawValue>,
}

impl GenerateRequest {
    /// Reads a request from the bytes of its body.
    pub fn parse(bytes: &[u8]) -> Result<Self, ApiError> {
        let body = Body::parse(bytes)?;
        unsupported::check_generate(&body)?;
        let raw: RawPrompt = body.read()?;
        let (prompts, is_batch) = prompts_of(raw.text, raw.input_ids)?;
        let num_prompts = prompts.len();
        check_batch(native_field(&prompts), num_prompts, 1)?;
        let sampling = sampling_of(&body, num_prompts)?;
        let logprobs = logprobs_of(body.read()?, num_prompts)?;
        let n = sampling.first().map_or(1, |first| first.n);
        if let Some(other) = sampling.iter().find(|other| other.n != n) {
            let message = format!(
                "all sampling_params of one batch must have the same n, got {n} and {}",
                other.n
            );
            return Err(ApiError::bad_request("sampling_params", message));
        }
        check_batch("sampling_params", num_prompts, n)?;
        let routing = Routing::batch(&body, num_prompts, is_batch, n)?;
        let rows = prompts.into_iter().zip(sampling).zip(logprobs).zip(routing);
        let items = rows
            .map(|(((prompt, sampling), logprobs), routing)| PromptItem {
                prompt,
                sampling,
                logprobs,
                routing,
            })
            .collect();
        Ok(Self {
            model: raw.model,
            items,
            is_batch,
            stream: raw.stream.unwrap_or(false),
            return_text_in_logprobs: raw.return_text_in_logprobs.unwrap_or(false),
        })
    }
}

/// Bounds the prompts of a request, and its answers.
pub(crate) fn check_batch(field: &str, num_prompts: usize, n: u32) -> Result<(), ApiError> {
    let given = format!("{num_prompts} prompts");
    require(
        num_prompts <= MAX_BATCH,
        field,
        given,
        &format!("at most {MAX_BATCH} prompts"),
    )?;
    let answers = num_prompts.saturating_mul(n as usize);
    let given = format!("{num_prompts} prompts with n = {n}");
    require(
        answers <= MAX_ANSWERS,
        "n",
        given,
        &format!("such that prompts × n is at most {MAX_ANSWERS}"),
    )
}

/// The field that native prompts came in.
pub(crate) fn native_field(prompts: &[Prompt]) -> &'static str {
    prompts.first().map_or("text", Prompt::native_field)
}

/// The prompts of a native body, and whether they were a list.
pub(crate) fn prompts_of(
    text: Option<OneOrMany<String>>,
    input_ids: Option<TokenIds>,
) -> Result<(Vec<Prompt>, bool), ApiError> {
    const EXACTLY_ONE: &str = "Either text, input_ids or input_embeds should be provided.";
    match (text, input_ids) {
        (Some(text), None) => text_prompts(text),
        (None, Some(ids)) => id_prompts(ids),
        (None, None) => Err(ApiError::missing("text", EXACTLY_ONE)),
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "input_ids",
            format!("{EXACTLY_ONE} Got both text and input_ids."),
        )),
    }
}

fn text_prompts(text: OneOrMany<String>) -> Result<(Vec<Prompt>, bool), ApiError> {
    let is_batch = matches!(text, OneOrMany::Many(_));
    let texts = text.into_vec();
    if texts.is_empty() || texts.iter().any(String::is_empty) {
        return Err(ApiError::bad_request("text", "text cannot be empty."));
    }
    Ok((texts.into_iter().map(Prompt::Text).collect(), is_batch))
}

fn id_prompts(ids: TokenIds) -> Result<(Vec<Prompt>, bool), ApiError> {
    let (lists, is_batch) = match ids {
        TokenIds::One(ids) => (vec![ids], false),
        TokenIds::Many(lists) => (lists.into_iter().map(Option::unwrap_or_default).collect(), true),
    };
    if lists.iter().any(Vec::is_empty) {
        return Err(ApiError::bad_request("input_ids", "input_ids cannot be empty."));
    }
    Ok((lists.into_iter().map(Prompt::Ids).collect(), is_batch))
}

fn sampling_of(body: &Body, num_prompts: usize) -> Result<Vec<Sampling>, ApiError> {
    let raw: RawParams = body.read()?;
    let Some(params) = raw.sampling_params else {
        let default = Sampling {
            default_max_new_tokens: Some(sampling::DEFAULT_MAX_NEW_TOKENS),
            max_field: "max_new_tokens",
            ..Sampling::default()
        };
        return Ok(vec![default; num_prompts]);
    };
    if !params.get().starts_with('[') {
        return Ok(vec![
            one_sampling("sampling_params".to_owned(), params)?;
            num_prompts
        ]);
    }
    let parts: Vec<&RawValue> = serde_json::from_str(params.get()).map_err(|e| {
        ApiError::bad_request("sampling_params", format!("sampling_params cannot be read: {e}"))
    })?;
    let given = format!("a list of {}", parts.len());
    let allowed = format!("one object, or a list with one for each of the {num_prompts} prompts");
    require(parts.len() == num_prompts, "sampling_params", given, &allowed)?;
    parts
        .into_iter()
        .enumerate()
        .map(|(i, part)| one_sampling(format!("sampling_params[{i}]"), part))
        .collect()
}

fn one_sampling(path: String, params: &RawValue) -> Result<Sampling, ApiError> {
    let body = Body::parse_at(path, params.get())?;
    unsupported::check_sampling(&body)?;
    sampling::from_native(&body)
}

fn logprobs_of(raw: RawLogprobs, num_prompts: usize) -> Result<Vec<Option<LogprobRequest>>, ApiError> {
    let wanted = spread("return_logprob", raw.return_logprob, num_prompts)?;
    let starts = raw.logprob_start_len.unwrap_or(OneOrMany::One(-1));
    let starts = spread("logprob_start_len", Some(starts), num_prompts)?;
    let top_nums = spread("top_logprobs_num", raw.top_logprobs_num, num_prompts)?;
    let token_ids = match raw.token_ids_logprob {
        None => None,
        Some(TokenIds::One(ids)) => Some(OneOrMany::One(Some(ids))),
        Some(TokenIds::Many(lists)) => Some(OneOrMany::Many(lists)),
    };
    let token_ids = spread("token_ids_logprob", token_ids, num_prompts)?;
    for start in &starts {
        require(
            *start >= -1,
            "logprob_start_len",
            start,
            "-1 (answer only) or a position in the prompt",
        )?;
    }
    for num in &top_nums {
        let allowed = format!("from 0 to {MAX_NATIVE_TOP_LOGPROBS}");
        require(*num <= MAX_NATIVE_TOP_LOGPROBS, "top_logprobs_num", num, &allowed)?;
    }
    for ids in token_ids.iter().flatten() {
        check_num_ids("token_ids_logprob", ids.len())?;
    }
    let rows = wanted.into_iter().zip(starts).zip(top_nums).zip(token_ids);
    Ok(rows
        .map(|(((wanted, start_len), top_num), token_ids)| {
            wanted.then(|| LogprobRequest {
                start_len,
                top_num,
                token_ids: token_ids.unwrap_or_default(),
            })
        })
        .collect())
}
