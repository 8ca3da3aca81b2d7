//! Prompts, messages and their companions that are refused, with the path of what is wrong in them.

use super::{chat, completion, detokenize, generate, messages, refused, tokenize};
use crate::ChatRequest;

const WRONG_MESSAGES: &[(&str, &str, &str)] = &[
    ("[]", "messages", "at least one message"),
    ("{}", "messages", "a list, got an object"),
    ("\"Hi\"", "messages", "a list, got string \"Hi\""),
    ("null", "messages", "a list, got null"),
    ("[1]", "messages[0]", "an object"),
    ("[{}]", "messages[0].role", "is required"),
    (r#"[{"role":"user"}]"#, "messages[0].content", "is required"),
    (
        r#"[{"role":"user","content":null}]"#,
        "messages[0].content",
        "is required",
    ),
    (
        r#"[{"role":"user","content":5}]"#,
        "messages[0].content",
        "a string or a list of text parts, got integer `5`",
    ),
    (
        r#"[{"role":"robot","content":"x"}]"#,
        "messages[0].role",
        "`developer`",
    ),
    (r#"[{"role":5,"content":"x"}]"#, "messages[0].role", ""),
    (
        r#"[{"role":"user","content":["x"]}]"#,
        "messages[0].content[0]",
        "an object",
    ),
    (
        r#"[{"role":"user","content":[{"text":"x"}]}]"#,
        "messages[0].content[0].type",
        "is required",
    ),
    (
        r#"[{"role":"user","content":[{"type":"text"}]}]"#,
        "messages[0].content[0].text",
        "is required",
    ),
    (
        r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]"#,
        "messages[0].content[1]",
        "`image_url`, which is not supported by this version",
    ),
    (
        r#"[{"role":"assistant","audio":{"id":"x"}}]"#,
        "messages[0].audio",
        "not supported",
    ),
    (
        r#"[{"role":"assistant","tool_calls":["x"]}]"#,
        "messages[0].tool_calls[0]",
        "an object",
    ),
    (
        r#"[{"role":"assistant","tool_calls":{}}]"#,
        "messages[0].tool_calls",
        "a list",
    ),
    (
        r#"[{"role":"user","content":"a"},{"role":"user","content":"b","name":3}]"#,
        "messages[1].name",
        "a string",
    ),
];

#[test]
fn wrong_messages_are_refused_with_their_path() {
    for (list, param, words) in WRONG_MESSAGES {
        refused(messages(list), param, words);
        let fields = format!(r#""messages":{list}"#);
        if *list != "null" {
            refused(tokenize(&fields), param, words);
        }
    }
    refused(ChatRequest::parse(b"{}"), "messages", "messages is required");
}

#[test]
fn chat_options_that_contradict_each_other_are_refused() {
    for (field, param, words) in [
        (r#""top_logprobs":2"#, "top_logprobs", "`logprobs: true`"),
        (
            r#""logprobs":true,"top_logprobs":21"#,
            "top_logprobs",
            "from 0 to 20, got 21",
        ),
        (
            r#""logprobs":true,"top_logprobs":-1"#,
            "top_logprobs",
            "a whole number",
        ),
        (r#""logprobs":3"#, "logprobs", "true or false"),
        (r#""min_tokens":6,"max_tokens":5"#, "min_tokens", "max_tokens = 5"),
        (
            r#""min_tokens":6,"max_tokens":9,"max_completion_tokens":5"#,
            "min_tokens",
            "max_completion_tokens = 5",
        ),
        (
            r#""continue_final_message":true"#,
            "continue_final_message",
            "role `assistant`, got `user`",
        ),
        (
            r#""continue_final_message":true,"add_generation_prompt":true"#,
            "continue_final_message",
            "exclude",
        ),
        (
            r#""chat_template_kwargs":{"messages":[]}"#,
            "chat_template_kwargs.messages",
            "not allowed",
        ),
        (
            r#""chat_template_kwargs":[]"#,
            "chat_template_kwargs",
            "an object",
        ),
        (r#""rid":["a","b"]"#, "rid", "one value"),
    ] {
        refused(chat(field), param, words);
    }
}

#[test]
fn wrong_completion_prompts_are_refused() {
    for (prompt, param, words) in [
        ("\"\"", "prompt", "must not be empty"),
        ("[]", "prompt", "must not be empty"),
        ("[\"\"]", "prompt", "must not be empty"),
        ("[[]]", "prompt", "must not be empty"),
        ("null", "prompt", "got null"),
        ("5", "prompt", "a string, a list of strings"),
        ("{}", "prompt", "a string, a list of strings"),
        ("[\"a\",1]", "prompt[1]", "a string"),
        ("[1,\"a\"]", "prompt[1]", "a whole number from 0"),
        ("[1,-1]", "prompt[1]", "a whole number from 0"),
        ("[-1]", "prompt[0]", "a token id"),
        ("[1.5]", "prompt[0]", "a token id"),
        ("[4294967296]", "prompt[0]", "a token id"),
        ("[[1],[2,\"x\"]]", "prompt[1][1]", "a whole number from 0"),
        ("[[1],2]", "prompt[1]", "a list"),
        ("[[[1]]]", "prompt[0][0]", "a whole number"),
        ("[null]", "prompt[0]", "a string, a token id"),
    ] {
        refused(completion(&format!(r#""prompt":{prompt}"#)), param, words);
    }
    refused(completion(""), "prompt", "prompt is required");
    refused(
        completion(r#""prompt":"x","logprobs":21"#),
        "logprobs",
        "from 0 to 20",
    );
    refused(
        completion(r#""prompt":"x","logprobs":true"#),
        "logprobs",
        "a whole number",
    );
    refused(
        completion(r#""prompt":"x","min_tokens":17"#),
        "min_tokens",
        "max_tokens = 16",
    );
    refused(
        completion(r#""prompt":"x","suffix":"y""#),
        "suffix",
        "not supported",
    );
    refused(
        completion(r#""prompt":"x","best_of":2"#),
        "best_of",
        "not supported",
    );
    refused(
        completion(r#""prompt":["x","y"],"rid":["a","a"]"#),
        "rid",
        "Duplicate request ID detected: a",
    );
}

const EXACTLY_ONE: &str = "Either text, input_ids or input_embeds should be provided.";

const WRONG_NATIVE: &[(&str, &str, &str)] = &[
    ("", "text", EXACTLY_ONE),
    (r#""text":null"#, "text", EXACTLY_ONE),
    (r#""text":"x","input_ids":[1]"#, "input_ids", EXACTLY_ONE),
    (r#""text":"""#, "text", "text cannot be empty."),
    (r#""text":[]"#, "text", "text cannot be empty."),
    (r#""text":["a",""]"#, "text", "text cannot be empty."),
    (r#""text":["a",5]"#, "text[1]", "a string"),
    (r#""text":5"#, "text", "a string"),
    (r#""input_ids":[]"#, "input_ids", "input_ids cannot be empty."),
    (
        r#""input_ids":[[1],[]]"#,
        "input_ids",
        "input_ids cannot be empty.",
    ),
    (r#""input_ids":[1,-1]"#, "input_ids[1]", "a whole number from 0"),
    (r#""input_ids":[1,[2]]"#, "input_ids[1]", "a whole number from 0"),
    (r#""input_ids":"x""#, "input_ids", "a list"),
    (r#""input_embeds":[[0.5]]"#, "input_embeds", "not supported"),
    (r#""text":"x","image_data":"y""#, "image_data", "not supported"),
    (r#""text":"x","lora_id":"a""#, "lora_id", "not supported"),
    (
        r#""text":"x","lora_path":["a","b"]"#,
        "lora_path",
        "one for each of the 1 prompts",
    ),
    (
        r#""text":"x","return_logprob":1"#,
        "return_logprob",
        "true or false",
    ),
    (
        r#""text":["x","y"],"return_logprob":[true]"#,
        "return_logprob",
        "each of the 2 prompts, got a list of 1",
    ),
    (
        r#""text":"x","logprob_start_len":-2"#,
        "logprob_start_len",
        "-1 (answer only)",
    ),
    (
        r#""text":"x","logprob_start_len":0.5"#,
        "logprob_start_len",
        "a whole number",
    ),
    (
        r#""text":"x","top_logprobs_num":-1"#,
        "top_logprobs_num",
        "a whole number from 0",
    ),
    (
        r#""text":"x","top_logprobs_num":100000"#,
        "top_logprobs_num",
        "from 0 to 1024",
    ),
    (
        r#""text":"x","token_ids_logprob":["a"]"#,
        "token_ids_logprob[0]",
        "a whole number",
    ),
    (
        r#""text":["x","y"],"sampling_params":[{}]"#,
        "sampling_params",
        "each of the 2 prompts",
    ),
    (
        r#""text":["x","y"],"sampling_params":[{"n":1},{"n":2}]"#,
        "sampling_params",
        "the same n, got 1 and 2",
    ),
    (r#""text":["x","y"],"rid":["a"]"#, "rid", "each of the 2 prompts"),
    (
        r#""text":["x","y"],"rid":["a","a"]"#,
        "rid",
        "Duplicate request ID detected: a",
    ),
    (
        r#""text":["x","y"],"extra_key":["a"]"#,
        "extra_key",
        "each of the 2 prompts",
    ),
];

#[test]
fn wrong_native_prompts_are_refused() {
    for (fields, param, words) in WRONG_NATIVE {
        refused(generate(fields), param, words);
    }
}

#[test]
fn wrong_token_requests_are_refused() {
    refused(tokenize(""), "prompt", "either prompt or messages");
    refused(
        tokenize(r#""prompt":"x","messages":[{"role":"user","content":"x"}]"#),
        "messages",
        "exclude each other",
    );
    refused(tokenize(r#""prompt":[1]"#), "prompt[0]", "a string");
    refused(
        tokenize(r#""prompt":"x","add_special_tokens":1"#),
        "add_special_tokens",
        "true or false",
    );
    refused(detokenize(""), "tokens", "tokens is required");
    refused(detokenize(r#""tokens":"x""#), "tokens", "a list of token ids");
    refused(detokenize(r#""tokens":[-1]"#), "tokens[0]", "a whole number");
    refused(
        detokenize(r#""tokens":[[1],["x"]]"#),
        "tokens[1][0]",
        "a whole number",
    );
}
