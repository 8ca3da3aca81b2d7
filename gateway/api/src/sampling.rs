//! How the tokens of an answer are chosen and when it ends: the knobs that all generating endpoints share.

use std::fmt::Display;

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::body::Body;
use crate::clip::clip;
use crate::constraint::{self, Checked, Constraint};
use crate::error::ApiError;
use crate::limits::{MAX_N, MAX_PARAMS_DEPTH, MAX_STOP_REGEX_BYTES, MAX_STOPS, MAX_TOKEN_IDS};
use crate::shapes::OneOrMany;

/// Checked sampling options. `None` means that the client left the choice to the model's own defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// ≥ 0; the engine takes what is below 1e-5 for greedy.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// −1 (off) or ≥ 1.
    pub top_k: Option<i32>,
    /// In [0, 1].
    pub min_p: Option<f32>,
    /// In [−2, 2].
    pub frequency_penalty: Option<f32>,
    /// In [−2, 2].
    pub presence_penalty: Option<f32>,
    /// In (0, 2].
    pub repetition_penalty: Option<f32>,
    /// 0 computes the prompt and generates nothing. `None`: the client did not say.
    pub max_new_tokens: Option<u32>,
    /// The endpoint's limit where the client did not say; it gives way to what the context leaves.
    pub default_max_new_tokens: Option<u32>,
    /// What the endpoint calls `max_new_tokens`.
    pub max_field: &'static str,
    /// At most `max_new_tokens`.
    pub min_new_tokens: u32,
    /// Non-empty strings, at most [`MAX_STOPS`].
    pub stop: Vec<String>,
    pub stop_token_ids: Vec<u32>,
    pub stop_regex: Vec<String>,
    pub ignore_eos: bool,
    pub skip_special_tokens: bool,
    /// For workers that decode; here nothing is put between tokens, as with every `tokenizer.json`.
    pub spaces_between_special_tokens: bool,
    /// Keeps the matched stop in the text.
    pub no_stop_trim: bool,
    /// Answers per prompt, 1 to [`MAX_N`].
    pub n: u32,
    /// Token id → what is added to its logit.
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: Option<i64>,
    /// Tokens per message of the worker's stream.
    pub stream_interval: Option<u32>,
    pub constraint: Option<Constraint>,
    /// Why none of our grammar backends honours the constraint. Another backend of a worker may.
    pub unhonoured: Option<ApiError>,
    /// What a custom logit processor is given. Its numbers are doubles on the way to the worker.
    pub custom_params: Option<Map<String, Value>>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: None,
            top_p: None,
            top_k: None,
            min_p: None,
            frequency_penalty: None,
            presence_penalty: None,
            repetition_penalty: None,
            max_new_tokens: None,
            default_max_new_tokens: None,
            max_field: "max_tokens",
            min_new_tokens: 0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            stop_regex: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            spaces_between_special_tokens: true,
            no_stop_trim: false,
            n: 1,
            logit_bias: Vec::new(),
            seed: None,
            stream_interval: None,
            constraint: None,
            unhonoured: None,
            custom_params: None,
        }
    }
}

impl Sampling {
    pub(crate) fn constrain(&mut self, checked: Option<Checked>) {
        if let Some(checked) = checked {
            (self.constraint, self.unhonoured) = (Some(checked.constraint), checked.unhonoured);
        }
    }

    /// Refuses ids that the model does not have; the one check that needs the model.
    pub fn check_vocabulary(&self, vocab_size: usize) -> Result<(), ApiError> {
        let biased = self.logit_bias.iter().map(|(id, _)| ("logit_bias", *id));
        let stops = self.stop_token_ids.iter().map(|id| ("stop_token_ids", *id));
        for (field, id) in biased.chain(stops) {
            check_token_id(field, id, vocab_size)?;
        }
        Ok(())
    }
}

/// Refuses a token id outside the vocabulary.
pub fn check_token_id(field: &str, id: u32, vocab_size: usize) -> Result<(), ApiError> {
    require(
        (id as usize) < vocab_size,
        field,
        id,
        &format!("an id of the vocabulary, 0 to {}", vocab_size - 1),
    )
}

/// The names that the OpenAI endpoints and `/generate` share.
#[derive(Debug, Deserialize)]
struct Shared {
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i32>,
    min_p: Option<f64>,
    frequency_penalty: Option<f64>,
    presence_penalty: Option<f64>,
    repetition_penalty: Option<f64>,
    stop: Option<OneOrMany<String>>,
    stop_token_ids: Option<OneOrMany<u32>>,
    stop_regex: Option<OneOrMany<String>>,
    ignore_eos: Option<bool>,
    skip_special_tokens: Option<bool>,
    spaces_between_special_tokens: Option<bool>,
    no_stop_trim: Option<bool>,
    n: Option<u32>,
    logit_bias: Option<IndexMap<String, f64>>,
    sampling_seed: Option<i64>,
    stream_interval: Option<u32>,
    custom_params: Option<Map<String, Value>>,
}

/// Names that only the OpenAI endpoints use.
#[derive(Debug, Deserialize)]
struct OpenAiNames {
    max_tokens: Option<u32>,
    max_completion_tokens: Option<u32>,
    min_tokens: Option<u32>,
    seed: Option<i64>,
}

/// Names that only `sampling_params` uses.
#[derive(Debug, Deserialize)]
struct NativeNames {
    max_new_tokens: Option<u32>,
    min_new_tokens: Option<u32>,
}

/// Every key of `sampling_params` that is read.
const NATIVE_KEYS: &[&str] = &[
    "max_new_tokens",
    "min_new_tokens",
    "stop",
    "stop_token_ids",
    "stop_regex",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "n",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "no_stop_trim",
    "logit_bias",
    "sampling_seed",
    "stream_interval",
    "json_schema",
    "regex",
    "ebnf",
    "structural_tag",
    "custom_params",
];

/// Reads the options of a chat or completion body.
pub(crate) fn from_openai(body: &Body, default_max_tokens: Option<u32>) -> Result<Sampling, ApiError> {
    let names: OpenAiNames = body.read()?;
    let mut sampling = read_shared(body, 100.0)?;
    if names.max_completion_tokens.is_some() {
        sampling.max_field = "max_completion_tokens";
    }
    sampling.max_new_tokens = names.max_completion_tokens.or(names.max_tokens);
    sampling.default_max_new_tokens = default_max_tokens;
    sampling.min_new_tokens = names.min_tokens.unwrap_or(0);
    sampling.seed = names.seed.or(sampling.seed);
    sampling.constrain(constraint::from_openai(body)?);
    check_lengths(&sampling, body, "min_tokens")?;
    Ok(sampling)
}

/// Reads one `sampling_params` object, whose unknown keys are refused.
pub(crate) fn from_native(body: &Body) -> Result<Sampling, ApiError> {
    if let Some((unknown, _)) = body.fields().find(|(key, _)| !is_native_key(key)) {
        let message = format!(
            "`{}` is no sampling parameter; there are: {}",
            clip(unknown),
            NATIVE_KEYS.join(", ")
        );
        return Err(ApiError::bad_request(body.path_of(unknown), message).with_code("unknown_parameter"));
    }
    let names: NativeNames = body.read()?;
    let mut sampling = read_shared(body, f64::from(f32::MAX))?;
    sampling.max_new_tokens = names.max_new_tokens;
    sampling.default_max_new_tokens = Some(DEFAULT_MAX_NEW_TOKENS);
    sampling.max_field = "max_new_tokens";
    sampling.min_new_tokens = names.min_new_tokens.unwrap_or(0);
    sampling.constrain(constraint::from_texts(body)?);
    check_lengths(&sampling, body, "min_new_tokens")?;
    Ok(sampling)
}

/// `max_new_tokens` of `/generate` when the client gives none.
pub const DEFAULT_MAX_NEW_TOKENS: u32 = 128;

fn is_native_key(key: &str) -> bool {
    NATIVE_KEYS.contains(&key)
        || crate::unsupported::SAMPLING
            .iter()
            .any(|option| option.field == key)
}

fn read_shared(body: &Body, max_bias: f64) -> Result<Sampling, ApiError> {
    let raw: Shared = body.read()?;
    let check = Check { body };
    let defaults = check.choice(&raw)?;
    let n = raw.n.unwrap_or(1);
    require(
        (1..=MAX_N).contains(&n),
        &body.path_of("n"),
        n,
        &format!("from 1 to {MAX_N}"),
    )?;
    let interval = raw.stream_interval;
    require(
        interval != Some(0),
        &body.path_of("stream_interval"),
        0,
        "at least 1",
    )?;
    Ok(Sampling {
        stop: check.stops("stop", raw.stop)?,
        stop_token_ids: check.ids("stop_token_ids", raw.stop_token_ids)?,
        stop_regex: check.patterns("stop_regex", raw.stop_regex)?,
        ignore_eos: raw.ignore_eos.unwrap_or(defaults.ignore_eos),
        skip_special_tokens: raw.skip_special_tokens.unwrap_or(defaults.skip_special_tokens),
        spaces_between_special_tokens: raw
            .spaces_between_special_tokens
            .unwrap_or(defaults.spaces_between_special_tokens),
        no_stop_trim: raw.no_stop_trim.unwrap_or(defaults.no_stop_trim),
        n,
        logit_bias: check.bias(raw.logit_bias, max_bias)?,
        seed: raw.sampling_seed,
        stream_interval: interval,
        custom_params: check.params(raw.custom_params)?,
        ..defaults
    })
}

fn check_lengths(sampling: &Sampling, body: &Body, min: &str) -> Result<(), ApiError> {
    let max = sampling.max_field;
    match sampling.max_new_tokens.or(sampling.default_max_new_tokens) {
        Some(limit) => require(
            sampling.min_new_tokens <= limit,
            &body.path_of(min),
            sampling.min_new_tokens,
            &format!("at most {max} = {limit}"),
        ),
        None => Ok(()),
    }
}

/// Field checks of one body; errors carry the field's path.
struct Check<'b, 'a> {
    body: &'b Body<'a>,
}

impl Check<'_, '_> {
    /// The numbers that decide which token is chosen; the rest has its defaults.
    fn choice(&self, raw: &Shared) -> Result<Sampling, ApiError> {
        if let Some(k) = raw.top_k {
            require(
                k == -1 || k >= 1,
                &self.body.path_of("top_k"),
                k,
                "-1 (off) or at least 1",
            )?;
        }
        let above_zero = |most: &str| format!("above 0 and at most {most}");
        Ok(Sampling {
            temperature: self.number(
                "temperature",
                raw.temperature,
                |t| t >= 0.0,
                "a finite number, 0 or more",
            )?,
            top_p: self.number("top_p", raw.top_p, |p| p > 0.0 && p <= 1.0, &above_zero("1"))?,
            top_k: raw.top_k,
            min_p: self.number("min_p", raw.min_p, |p| (0.0..=1.0).contains(&p), "from 0 to 1")?,
            frequency_penalty: self.penalty("frequency_penalty", raw.frequency_penalty)?,
            presence_penalty: self.penalty("presence_penalty", raw.presence_penalty)?,
            repetition_penalty: self.number(
                "repetition_penalty",
                raw.repetition_penalty,
                |p| p > 0.0 && p <= 2.0,
                &above_zero("2"),
            )?,
            ..Sampling::default()
        })
    }

    fn number(
        &self,
        field: &str,
        value: Option<f64>,
        holds: fn(f64) -> bool,
        allowed: &str,
    ) -> Result<Option<f32>, ApiError> {
        let Some(value) = value else { return Ok(None) };
        // The wire has single precision, and takes a zero for unset.
        let narrow = value as f32;
        let fits = narrow.is_finite() && holds(f64::from(narrow));
        require(holds(value) && fits, &self.body.path_of(field), value, allowed)?;
        Ok(Some(narrow))
    }

    fn penalty(&self, field: &str, value: Option<f64>) -> Result<Option<f32>, ApiError> {
        self.number(field, value, |p| (-2.0..=2.0).contains(&p), "from -2 to 2")
    }

    fn stops(&self, field: &str, value: Option<OneOrMany<String>>) -> Result<Vec<String>, ApiError> {
        let stops = value.map(OneOrMany::into_vec).unwrap_or_default();
        let path = self.body.path_of(field);
        let allowed = format!("at most {MAX_STOPS} strings");
        require(
            stops.len() <= MAX_STOPS,
            &path,
            format_args!("{} strings", stops.len()),
            &allowed,
        )?;
        require(
            !stops.iter().any(String::is_empty),
            &path,
            "an empty string",
            "strings that are not empty",
        )?;
        Ok(stops)
    }

    fn patterns(&self, field: &str, value: Option<OneOrMany<String>>) -> Result<Vec<String>, ApiError> {
        let patterns = self.stops(field, value)?;
        let longest = patterns.iter().map(String::len).max().unwrap_or(0);
        let allowed = format!("patterns of at most {MAX_STOP_REGEX_BYTES} bytes");
        let path = self.body.path_of(field);
        require(
            longest <= MAX_STOP_REGEX_BYTES,
            &path,
            format_args!("{longest} bytes"),
            &allowed,
        )?;
        Ok(patterns)
    }

    fn ids(&self, field: &str, value: Option<OneOrMany<u32>>) -> Result<Vec<u32>, ApiError> {
        let ids = value.map(OneOrMany::into_vec).unwrap_or_default();
        check_num_ids(&self.body.path_of(field), ids.len())?;
        Ok(ids)
    }

    /// The wire nests three messages for each level, and its readers stop at a hundred.
    fn params(&self, value: Option<Map<String, Value>>) -> Result<Option<Map<String, Value>>, ApiError> {
        let params = value.filter(|params| !params.is_empty());
        let levels = params.as_ref().map_or(0, |params| depth(params.values()));
        let allowed = format!("nested at most {MAX_PARAMS_DEPTH} levels deep");
        let path = self.body.path_of("custom_params");
        require(
            levels <= MAX_PARAMS_DEPTH,
            &path,
            format_args!("{levels} levels"),
            &allowed,
        )?;
        Ok(params)
    }

    fn bias(&self, value: Option<IndexMap<String, f64>>, bound: f64) -> Result<Vec<(u32, f32)>, ApiError> {
        let path = self.body.path_of("logit_bias");
        let bias = value.unwrap_or_default();
        check_num_ids(&path, bias.len())?;
        bias.into_iter()
            .map(|(key, bias)| {
                let shown = clip(&key);
                let digits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_digit());
                let id = key.parse::<u32>().ok().filter(|_| digits);
                let id = id.ok_or_else(|| {
                    let message = format!("{path} must have token ids as keys, got `{shown}`");
                    ApiError::bad_request(path.clone(), message)
                })?;
                let allowed = if bound > 100.0 {
                    "a finite number"
                } else {
                    "from -100 to 100"
                };
                require(bias.abs() <= bound, &format!("{path}.{shown}"), bias, allowed)?;
                Ok((id, bias as f32))
            })
            .collect()
    }
}

/// Levels of an object or list with these members.
fn depth<'a>(members: impl Iterator<Item = &'a Value>) -> usize {
    let below = members.map(|member| match member {
        Value::Object(map) => depth(map.values()),
        Value::Array(items) => depth(items.iter()),
        _ => 0,
    });
    1 + below.max().unwrap_or(0)
}

pub(crate) fn check_num_ids(path: &str, num_ids: usize) -> Result<(), ApiError> {
    let allowed = format!("at most {MAX_TOKEN_IDS} token ids");
    require(
        num_ids <= MAX_TOKEN_IDS,
        path,
        format_args!("{num_ids}"),
        &allowed,
    )
}

/// One sentence for every range: what must hold, and what was given.
pub(crate) fn require(holds: bool, param: &str, given: impl Display, allowed: &str) -> Result<(), ApiError> {
    if holds {
        return Ok(());
    }
    Err(ApiError::bad_request(
        param,
        format!("{param} must be {allowed}, got {given}"),
    ))
}
