//! Bodies that are refused: 400, the field, and words that tell what is allowed.

use super::{chat, completion, detokenize, generate, messages, refused, tokenize};
use crate::limits::{MAX_BATCH, MAX_N, MAX_TOKEN_IDS};
use crate::{ChatRequest, CompletionRequest, GenerateRequest};

#[test]
fn bodies_that_are_no_json_object_are_refused() {
    for (bytes, words) in [
        (&b""[..], "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"nonsense", "not valid JSON"),
        (b"[]", "must be a JSON object, got a list"),
        (b"\"x\"", "must be a JSON object, got string \"x\""),
        (b"null", "must be a JSON object, got null"),
        (b"{} {}", "trailing characters"),
        (b"{\"model\":\"\xff\"}", "not valid UTF-8: broken at byte 10"),
        (
            b"{\"model\":\"a\",\"model\":\"b\"}",
            "gives `model` more than once",
        ),
    ] {
        refused(ChatRequest::parse(bytes), "", words);
        refused(CompletionRequest::parse(bytes), "", words);
        refused(GenerateRequest::parse(bytes), "", words);
    }
}

#[test]
fn json_has_no_infinity_and_no_nan() {
    for text in ["NaN", "Infinity", "-Infinity", "1e999", "01", "+1", ".5"] {
        refused(chat(&format!(r#""temperature":{text}"#)), "temperature", "");
    }
    refused(
        generate(r#""text":"x","sampling_params":{"temperature":NaN}"#),
        "sampling_params",
        "not valid JSON",
    );
}

#[test]
fn broken_surrogates_are_refused() {
    refused(
        messages(r#"[{"role":"user","content":"\ud800"}]"#),
        "messages[0].content",
        "hex escape",
    );
    refused(chat(r#""stop":["\ud800x"]"#), "stop[0]", "hex escape");
}

/// Options that chat and completions share, with their own names.
const SAMPLING: &[(&str, &str, &str)] = &[
    ("temperature", "-0.1", "0 or more"),
    ("temperature", "1e300", "finite"),
    ("temperature", "\"1\"", "a number, got string"),
    ("top_p", "0", "above 0 and at most 1"),
    ("top_p", "1e-60", "above 0 and at most 1"),
    ("top_p", "1.5", "above 0 and at most 1"),
    ("top_k", "0", "-1 (off) or at least 1"),
    ("top_k", "-2", "-1 (off) or at least 1"),
    (
        "top_k",
        "0.01",
        "a whole number from -2147483648 to 2147483647, got the number `0.01`",
    ),
    ("top_k", "\"5\"", "got string \"5\""),
    ("top_k", "99999999999", "got integer `99999999999`"),
    ("min_p", "-0.5", "from 0 to 1"),
    ("min_p", "2", "from 0 to 1"),
    ("frequency_penalty", "2.1", "from -2 to 2"),
    ("presence_penalty", "-2.1", "from -2 to 2"),
    ("repetition_penalty", "0", "above 0 and at most 2"),
    ("n", "0", "from 1 to 128, got 0"),
    ("n", "-1", "a whole number"),
    ("n", "1.5", "got the number `1.5`"),
    ("n", "129", "from 1 to 128"),
    ("stop", "7", "a string"),
    ("stop", "\"\"", "not empty"),
    ("stop", "[\"a\",\"\"]", "not empty"),
    ("stop_regex", "\"\"", "not empty"),
    ("ignore_eos", "1", "true or false, got integer `1`"),
    ("skip_special_tokens", "\"yes\"", "true or false"),
    ("no_stop_trim", "[]", "true or false, got a list"),
    ("logit_bias", "[1]", "an object, got a list"),
    ("logit_bias", "{\"x\":1}", "token ids as keys, got `x`"),
    ("logit_bias", "{\"-1\":1}", "token ids as keys"),
    ("logit_bias", "{\"+1\":1}", "token ids as keys"),
    ("logit_bias", "{\"4294967296\":1}", "token ids as keys"),
    ("stream_interval", "0", "at least 1"),
    ("rid", "\"\"", "1 to 256 printable characters"),
    ("rid", "\"a\\nb\"", "1 to 256 printable characters"),
    ("rid", "5", "a string"),
];

const OPENAI: &[(&str, &str, &str)] = &[
    ("max_tokens", "-1", "a whole number"),
    ("max_tokens", "3.7", "a whole number"),
    ("max_tokens", "4294967296", "from 0 to 4294967295"),
    ("seed", "1.5", "a whole number of 64 bits"),
    ("seed", "9223372036854775808", "64 bits"),
    ("stream", "\"true\"", "true or false"),
    ("stream_options", "{\"include_usage\":true}", "`stream: true`"),
    ("stream_options", "{}", "`stream: true`"),
    ("stream_options", "true", "an object"),
];

#[test]
fn openai_options_out_of_range_are_refused_by_name() {
    for (field, value, words) in SAMPLING.iter().chain(OPENAI) {
        let text = format!(r#""{field}":{value}"#);
        refused(chat(&text), field, words);
        refused(completion(&format!(r#""prompt":"x",{text}"#)), field, words);
    }
    for (value, param) in [
        ("{\"5\":100.5}", "logit_bias.5"),
        ("{\"7\":-101}", "logit_bias.7"),
    ] {
        refused(
            chat(&format!(r#""logit_bias":{value}"#)),
            param,
            "from -100 to 100",
        );
    }
    refused(chat(r#""logit_bias":{"7":"x"}"#), "logit_bias.7", "a number");
    refused(chat(r#""stop":["a",1]"#), "stop[1]", "a string");
    refused(
        chat(r#""stop_token_ids":[-1]"#),
        "stop_token_ids[0]",
        "a whole number from 0",
    );
}

#[test]
fn native_options_out_of_range_are_refused_with_their_path() {
    for (field, value, words) in SAMPLING.iter().filter(|row| row.0 != "rid") {
        let object = format!(r#"{{"{field}":{value}}}"#);
        let param = format!("sampling_params.{field}");
        refused(
            generate(&format!(r#""text":"x","sampling_params":{object}"#)),
            &param,
            words,
        );
        let param = format!("sampling_params[1].{field}");
        refused(
            generate(&format!(r#""text":["x","y"],"sampling_params":[{{}},{object}]"#)),
            &param,
            words,
        );
    }
    for (object, param, words) in [
        (
            r#"{"max_new_tokens":-1}"#,
            "sampling_params.max_new_tokens",
            "a whole number from 0",
        ),
        (
            r#"{"max_new_tokens":4,"min_new_tokens":5}"#,
            "sampling_params.min_new_tokens",
            "max_new_tokens = 4",
        ),
        (
            r#"{"sampling_seed":1.5}"#,
            "sampling_params.sampling_seed",
            "64 bits",
        ),
        (
            r#"{"max_tokens":5}"#,
            "sampling_params.max_tokens",
            "there are: max_new_tokens",
        ),
        (
            r#"{"custom_params":[1]}"#,
            "sampling_params.custom_params",
            "must be an object",
        ),
        (r#"{"n":1,"n":2}"#, "sampling_params", "gives `n` more than once"),
        ("5", "sampling_params", "must be a JSON object"),
        ("\"x\"", "sampling_params", "must be a JSON object"),
    ] {
        refused(
            generate(&format!(r#""text":"x","sampling_params":{object}"#)),
            param,
            words,
        );
    }
}

#[test]
fn lists_longer_than_the_limits_are_refused() {
    let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    refused(
        chat(&format!(r#""stop":{}"#, list("\"x\"", 33))),
        "stop",
        "at most 32 strings, got 33",
    );
    refused(
        chat(&format!(r#""stop":{}"#, list("\"x\"", 200))),
        "stop",
        "at most 32 strings",
    );
    refused(
        chat(&format!(r#""stop_regex":"{}""#, "x".repeat(257))),
        "stop_regex",
        "256 bytes, got 257",
    );
    let ids = list("1", MAX_TOKEN_IDS + 1);
    refused(
        chat(&format!(r#""stop_token_ids":{ids}"#)),
        "stop_token_ids",
        "at most 16384",
    );
    refused(
        generate(&format!(
            r#""text":"x","token_ids_logprob":{ids},"return_logprob":true"#
        )),
        "token_ids_logprob",
        "16384",
    );
}

#[test]
fn batches_larger_than_the_limits_are_refused() {
    let list = |item: &str, count: usize| format!("[{}]", vec![item; count].join(","));
    let prompts = list("\"x\"", MAX_BATCH + 1);
    refused(
        completion(&format!(r#""prompt":{prompts}"#)),
        "prompt",
        "at most 1024 prompts, got 1025",
    );
    refused(
        generate(&format!(r#""text":{prompts}"#)),
        "text",
        "at most 1024 prompts",
    );
    refused(
        tokenize(&format!(r#""prompt":{prompts}"#)),
        "prompt",
        "at most 1024",
    );
    refused(
        detokenize(&format!(r#""tokens":{}"#, list("[1]", MAX_BATCH + 1))),
        "tokens",
        "at most 1024",
    );
    let many = list("\"x\"", 1000);
    refused(
        completion(&format!(r#""prompt":{many},"n":{MAX_N}"#)),
        "n",
        "prompts × n is at most 4096",
    );
    refused(
        generate(&format!(r#""text":{many},"sampling_params":{{"n":{MAX_N}}}"#)),
        "n",
        "at most 4096",
    );
    refused(
        chat(&format!(r#""rid":"{}""#, "x".repeat(257))),
        "rid",
        "got 257 characters",
    );
}

#[test]
fn deep_nesting_is_refused_where_it_is_read_and_harmless_where_not() {
    let deep =
        |open: &str, close: &str, levels: usize| format!("{}{}", open.repeat(levels), close.repeat(levels));
    let lists = deep("[", "]", 200_000);
    refused(
        chat(&format!(r#""chat_template_kwargs":{{"a":{lists}}}"#)),
        "chat_template_kwargs.a",
        "128 levels",
    );
    refused(
        chat(&format!(r#""tools":{lists}"#)),
        "tools[0]",
        "must be a JSON object, got a list",
    );
    refused(chat(&format!(r#""stop":{lists}"#)), "stop[0]", "a string");
    refused(completion(&format!(r#""prompt":{lists}"#)), "prompt[0][0]", "");
    refused(
        generate(&format!(r#""text":"x","sampling_params":{lists}"#)),
        "sampling_params[0]",
        "must be a JSON object, got a list",
    );
    let calls = format!(r#"[{{"role":"assistant","tool_calls":[{{"function":{lists}}}]}}]"#);
    refused(
        messages(&calls),
        "messages[0].tool_calls[0].function",
        "128 levels",
    );
    assert!(chat(&format!(r#""anything":{lists}"#)).is_ok());
    refused(
        chat(&format!(r#""anything":{}"#, "[".repeat(200_000))),
        "anything",
        "not valid JSON",
    );
}

#[test]
fn a_long_wrong_value_is_not_repeated_whole() {
    refused(
        chat(&format!(r#""top_k":"{}""#, "x".repeat(1_000_000))),
        "top_k",
        "got string \"xxx",
    );
    refused(
        chat(&format!(r#""top_k":"{}""#, "x".repeat(1_000_000))),
        "top_k",
        "x… (1000000 characters)\"",
    );
    refused(
        generate(&format!(
            r#""text":"x","sampling_params":{{"{0}":1}}"#,
            "k".repeat(5000)
        )),
        &format!("sampling_params.{}… (5016 characters)", "k".repeat(84)),
        "is no sampling parameter",
    );
}
