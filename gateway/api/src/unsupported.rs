//! The options of the API that this version does not have. Each one that would change the answer is refused by
//! name, never ignored; a value that means "off" passes.

use serde_json::Value;
use serde_json::value::RawValue;

use crate::body::Body;
use crate::error::ApiError;

/// One option that is refused unless its value is harmless.
pub(crate) struct Unsupported {
    pub(crate) field: &'static str,
    /// Values that ask for nothing, besides `null`, `false`, `""`, `[]` and `{}`; in JSON.
    harmless: &'static [&'static str],
}

const fn refused(field: &'static str) -> Unsupported {
    refused_unless(field, &[])
}

const fn refused_unless(field: &'static str, harmless: &'static [&'static str]) -> Unsupported {
    Unsupported { field, harmless }
}

/// Options of any endpoint that generates.
const COMMON: &[Unsupported] = &[
    // Other servers' names of constraints.
    refused("structured_outputs"),
    refused("guided_json"),
    refused("guided_regex"),
    refused("guided_choice"),
    refused("guided_grammar"),
    // Code and tokens that steer the sampler.
    refused("logits_processors"),
    refused("allowed_token_ids"),
    refused("bad_words"),
    refused("use_beam_search"),
    refused_unless("beam_width", &["1"]),
    refused("watermark"),
    refused("include_stop_str_in_output"),
    refused("truncate_prompt_tokens"),
    refused("prompt_logprobs"),
    refused_unless("best_of", &["1"]),
    // An adapter's id is the worker's own business; other inputs.
    refused("lora_id"),
    refused("input_embeds"),
    refused("image_data"),
    refused("video_data"),
    refused("audio_data"),
    refused_unless("modalities", &[r#"["text"]"#]),
    // Prefill/decode pairs and data-parallel ranks.
    refused("bootstrap_host"),
    refused("bootstrap_port"),
    refused("bootstrap_room"),
    refused("bootstrap_pair_key"),
    refused("kv_transfer_params"),
    refused("decode_tp_size"),
    refused_unless("routed_dp_rank", &["0"]),
    refused_unless("data_parallel_rank", &["0"]),
    refused_unless("disagg_prefill_dp_rank", &["0"]),
    // More to return.
    refused("return_hidden_states"),
    refused("return_routed_experts"),
    refused("return_meta_info"),
    refused("return_token_ids"),
    refused("return_tokens_as_token_ids"),
    refused("return_prompt_token_ids"),
    refused("return_entropy"),
    refused("return_bytes"),
];

/// Further options of `/v1/chat/completions`.
const CHAT: &[Unsupported] = &[
    refused("functions"),
    refused_unless("function_call", &[r#""none""#, r#""auto""#]),
    refused("input_ids"),
    refused("echo"),
    refused("audio"),
    refused("web_search_options"),
    refused_unless("verbosity", &[r#""medium""#]),
    refused("chat_template"),
    refused("documents"),
];

/// Further options of `/v1/completions`.
const COMPLETION: &[Unsupported] = &[refused("suffix")];

/// Further options of `/generate`.
const GENERATE: &[Unsupported] = &[
    // They belong into `sampling_params`.
    refused("custom_params"),
    refused("background"),
    refused("max_thinking_tokens"),
    refused("mm_hashes"),
    refused("max_dynamic_patch"),
    refused("min_dynamic_patch"),
    refused("return_flat_raw_top_logprobs"),
    refused("return_flat_raw_top_logprobs_output"),
    refused("return_flat_raw_top_logprobs_b64"),
];

/// Options of `/v1/embeddings` and `/encode`.
const EMBEDDING: &[Unsupported] = &[
    refused("dimensions"),
    refused("lora_path"),
    refused("image_data"),
    refused("video_data"),
    refused("audio_data"),
    refused("is_cross_encoder_request"),
    refused("session_params"),
    refused("session_id"),
    refused("custom_logit_processor"),
];

/// Options inside `sampling_params`.
pub(crate) const SAMPLING: &[Unsupported] = &[refused("watermark"), refused_unless("beam_width", &["1"])];

pub(crate) fn check_chat(body: &Body) -> Result<(), ApiError> {
    check(body, &[COMMON, CHAT])
}

pub(crate) fn check_completion(body: &Body) -> Result<(), ApiError> {
    check(body, &[COMMON, COMPLETION])
}

pub(crate) fn check_generate(body: &Body) -> Result<(), ApiError> {
    check(body, &[COMMON, GENERATE])
}

pub(crate) fn check_embedding(body: &Body) -> Result<(), ApiError> {
    check(body, &[EMBEDDING])
}

pub(crate) fn check_sampling(body: &Body) -> Result<(), ApiError> {
    check(body, &[SAMPLING])
}

fn check(body: &Body, tables: &[&[Unsupported]]) -> Result<(), ApiError> {
    for (key, raw) in body.fields() {
        let option = tables
            .iter()
            .flat_map(|table| table.iter())
            .find(|option| option.field == key);
        if option.is_some_and(|option| !is_harmless(option, raw)) {
            let param = body.path_of(key);
            let message = format!("{param} is not supported by this version; leave it out");
            return Err(ApiError::unsupported(param, message));
        }
    }
    Ok(())
}

fn is_harmless(option: &Unsupported, raw: &RawValue) -> bool {
    // A value that is nested too deep to be read asks for something.
    let Ok(value) = serde_json::from_str::<Value>(raw.get()) else {
        return false;
    };
    let asks_for_nothing = match &value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.iter().all(Value::is_null),
        Value::Object(map) => map.is_empty(),
        Value::Number(_) => false,
    };
    let text = value.to_string();
    asks_for_nothing || option.harmless.contains(&text.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_option_is_listed_twice() {
        for tables in [[COMMON, CHAT], [COMMON, COMPLETION], [COMMON, GENERATE]] {
            let mut names: Vec<_> = tables.iter().flat_map(|t| t.iter()).map(|o| o.field).collect();
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
        }
    }

    #[test]
    fn a_value_that_asks_for_nothing_passes() {
        for body in [
            r#"{"functions":[],"function_call":"auto","response_format":{"type":"text"},"regex":""}"#,
            r#"{"lora_path":null,"function_call":"none","modalities":["text"],"return_hidden_states":false}"#,
        ] {
            let body = Body::parse(body.as_bytes()).unwrap();
            assert_eq!(check_chat(&body), Ok(()));
        }
    }

    #[test]
    fn every_listed_option_is_refused_by_name() {
        for (tables, check) in [
            ([COMMON, CHAT], check_chat as fn(&Body) -> Result<(), ApiError>),
            ([COMMON, COMPLETION], check_completion),
            ([COMMON, GENERATE], check_generate),
        ] {
            for option in tables.iter().flat_map(|table| table.iter()) {
                let text = format!(r#"{{"{}":"something"}}"#, option.field);
                let error = check(&Body::parse(text.as_bytes()).unwrap()).unwrap_err();
                assert_eq!(error.param.as_deref(), Some(option.field));
                assert_eq!(error.code, "unsupported_parameter");
                assert!(
                    error.message.contains("not supported by this version"),
                    "{}",
                    error.message
                );
            }
        }
    }
}
