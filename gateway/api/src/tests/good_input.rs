//! Bodies that are accepted, and what they become.

use serde_json::{Value, json};

use super::{chat, completion, detokenize, generate, messages, tokenize};
use crate::{
    ChatRequest, LogprobRequest, OneOrMany, Prompt, Routing, Sampling, StreamOptions, TokenizeInput,
};

fn text(prompt: &str) -> Prompt {
    Prompt::Text(prompt.to_owned())
}

fn message_list(list: &str) -> Value {
    messages(list).unwrap().messages
}

#[test]
fn a_plain_chat_leaves_everything_to_the_model() {
    let request = chat("").unwrap();
    assert_eq!(request.model.as_deref(), Some("demo"));
    assert_eq!(request.messages, json!([{"role": "user", "content": "Hi"}]));
    assert_eq!(request.sampling, Sampling::default());
    assert!(request.template.add_generation_prompt && !request.template.continue_final_message);
    assert!(!request.stream && !request.logprobs);
    assert_eq!(request.routing, Routing::default());
}

#[test]
fn null_counts_as_absent() {
    let plain = chat("").unwrap();
    for field in [
        "temperature",
        "top_p",
        "top_k",
        "n",
        "stop",
        "stop_token_ids",
        "max_tokens",
        "max_completion_tokens",
        "seed",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "stream",
        "stream_options",
        "tools",
        "tool_choice",
        "user",
        "response_format",
        "regex",
        "lora_path",
        "rid",
        "extra_key",
        "cache_salt",
        "priority",
        "chat_template_kwargs",
        "reasoning_effort",
        "metadata",
        "store",
        "service_tier",
    ] {
        assert_eq!(chat(&format!(r#""{field}":null"#)).unwrap(), plain, "{field}");
    }
    assert!(chat(r#""stream":true,"stream_options":null"#).unwrap().stream);
}

#[test]
fn fields_that_change_no_answer_are_tolerated() {
    let plain = chat("").unwrap();
    for field in [
        r#""user":"me""#,
        r#""metadata":{"a":1}"#,
        r#""store":true"#,
        r#""service_tier":"auto""#,
        r#""safety_identifier":"x""#,
        r#""prompt_cache_key":"x""#,
        r#""parallel_tool_calls":true"#,
        r#""something_new":{"deep":[1]}"#,
        r#""tools":[],"tool_choice":"auto""#,
        r#""response_format":{ "type" : "text" }"#,
        r#""n":1"#,
        r#""stop":[]"#,
        r#""logit_bias":{}"#,
    ] {
        assert_eq!(chat(field).unwrap(), plain, "{field}");
    }
}

#[test]
fn sampling_options_arrive() {
    let fields = r#""temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"frequency_penalty":-2,"presence_penalty":2,
        "repetition_penalty":1.1,"max_tokens":9,"max_completion_tokens":7,"min_tokens":3,"n":2,"stop":"a",
        "stop_token_ids":[5,6],"stop_regex":["b+"],"ignore_eos":true,"skip_special_tokens":false,
        "spaces_between_special_tokens":false,"no_stop_trim":true,"logit_bias":{"7":-100,"8":1.5},"seed":-3,
        "stream_interval":4"#;
    let expected = Sampling {
        temperature: Some(0.5),
        top_p: Some(0.9),
        top_k: Some(40),
        min_p: Some(0.1),
        frequency_penalty: Some(-2.0),
        presence_penalty: Some(2.0),
        repetition_penalty: Some(1.1),
        max_new_tokens: Some(7),
        default_max_new_tokens: None,
        max_field: "max_completion_tokens",
        min_new_tokens: 3,
        stop: vec!["a".to_owned()],
        stop_token_ids: vec![5, 6],
        stop_regex: vec!["b+".to_owned()],
        ignore_eos: true,
        skip_special_tokens: false,
        spaces_between_special_tokens: false,
        no_stop_trim: true,
        n: 2,
        logit_bias: vec![(7, -100.0), (8, 1.5)],
        seed: Some(-3),
        stream_interval: Some(4),
        constraint: None,
        unhonoured: None,
        custom_params: None,
    };
    assert_eq!(chat(fields).unwrap().sampling, expected);
    let of_completion = Sampling {
        default_max_new_tokens: Some(16),
        ..expected.clone()
    };
    assert_eq!(
        completion(&format!(r#""prompt":"x",{fields}"#)).unwrap().sampling,
        of_completion
    );
    let native = fields
        .replace(
            "\"max_tokens\":9,\"max_completion_tokens\":7",
            "\"max_new_tokens\":7",
        )
        .replace("min_tokens", "min_new_tokens")
        .replace("\"seed\"", "\"sampling_seed\"");
    let request = generate(&format!(r#""text":"x","sampling_params":{{{native}}}"#)).unwrap();
    let of_generate = Sampling {
        default_max_new_tokens: Some(128),
        max_field: "max_new_tokens",
        ..expected
    };
    assert_eq!(request.items[0].sampling, of_generate);
}

#[test]
fn tiny_and_whole_temperatures_are_numbers() {
    for (given, expected) in [
        ("0", 0.0),
        ("1", 1.0),
        ("1e-6", 1e-6),
        ("1e-30", 1e-30),
        ("1e-300", 0.0),
    ] {
        let sampling = chat(&format!(r#""temperature":{given},"top_p":0.9"#))
            .unwrap()
            .sampling;
        assert_eq!(sampling.temperature, Some(expected));
    }
}

#[test]
fn long_lists_of_ids_within_the_limit_pass() {
    let bias: Vec<String> = (0..3000).map(|id| format!("\"{id}\":1")).collect();
    let request = chat(&format!(r#""logit_bias":{{{}}}"#, bias.join(","))).unwrap();
    assert_eq!(request.sampling.logit_bias.len(), 3000);
    let ids = vec!["1"; 500].join(",");
    assert_eq!(
        chat(&format!(r#""stop_token_ids":[{ids}]"#))
            .unwrap()
            .sampling
            .stop_token_ids
            .len(),
        500
    );
}

#[test]
fn ids_outside_the_vocabulary_are_refused_by_the_one_check_that_needs_the_model() {
    let sampling = chat(r#""logit_bias":{"9":1},"stop_token_ids":[10]"#)
        .unwrap()
        .sampling;
    assert_eq!(sampling.check_vocabulary(11), Ok(()));
    assert_eq!(
        sampling.check_vocabulary(10).unwrap_err().param.as_deref(),
        Some("stop_token_ids")
    );
    let error = sampling.check_vocabulary(9).unwrap_err();
    assert_eq!(
        error.message,
        "logit_bias must be an id of the vocabulary, 0 to 8, got 9"
    );
}

#[test]
fn chat_logprobs_without_alternatives_are_fine() {
    let request = chat(r#""logprobs":true"#).unwrap();
    assert_eq!((request.logprobs, request.top_logprobs), (true, 0));
    assert_eq!(
        chat(r#""logprobs":true,"top_logprobs":20"#).unwrap().top_logprobs,
        20
    );
    assert!(!chat(r#""logprobs":false,"top_logprobs":0"#).unwrap().logprobs);
}

#[test]
fn stream_options_are_read() {
    let request = chat(r#""stream":true,"stream_options":{"include_usage":true,"other":1}"#).unwrap();
    assert_eq!(
        request.stream_options,
        StreamOptions {
            include_usage: true,
            continuous_usage_stats: false
        }
    );
    let request =
        chat(r#""stream":true,"stream_options":{"continuous_usage_stats":true,"include_usage":null}"#)
            .unwrap();
    assert_eq!(
        request.stream_options,
        StreamOptions {
            include_usage: false,
            continuous_usage_stats: true
        }
    );
}

#[test]
fn content_in_parts_equals_the_plain_string() {
    let plain =
        message_list(r#"[{"role":"user","content":"x"},{"role":"tool","tool_call_id":"c","content":"42"}]"#);
    let parts = message_list(
        r#"[{"role":"user","content":[{"type":"text","text":"x"}]},
            {"role":"tool","tool_call_id":"c","content":[{"type":"text","text":"42"}]}]"#,
    );
    assert_eq!(plain, parts);
    assert_eq!(
        plain[1],
        json!({"role": "tool", "content": "42", "tool_call_id": "c"})
    );
    let two = message_list(
        r#"[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}]"#,
    );
    assert_eq!(two[0]["content"], "a b");
}

#[test]
fn an_assistant_message_may_have_no_content() {
    let list = message_list(
        r#"[{"role":"user","content":""},
            {"role":"assistant","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{\"a\": 1}"}}]},
            {"role":"tool","tool_call_id":"c","content":"42"},
            {"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[]}]"#,
    );
    assert_eq!(list[1]["content"], "");
    assert_eq!(list[1]["tool_calls"][0]["function"]["arguments"], json!({"a": 1}));
    assert_eq!(
        list[3],
        json!({"role": "assistant", "content": "", "reasoning_content": "hm"})
    );
}

#[test]
fn arguments_of_old_calls_that_are_no_json_object_stay_as_they_came() {
    for arguments in [
        r#""{\"a\": \"x\"y\"}""#,
        r#""""#,
        "null",
        r#""[1]""#,
        r#"{"a":1}"#,
    ] {
        let body = format!(
            r#"[{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}]"#
        );
        let expected: Value = serde_json::from_str(arguments).unwrap();
        assert_eq!(
            message_list(&body)[0]["tool_calls"][0]["function"]["arguments"],
            expected
        );
    }
    assert_eq!(
        message_list(r#"[{"role":"assistant","tool_calls":[{"id":1}]}]"#)[0]["tool_calls"],
        json!([{"id": 1}])
    );
}

#[test]
fn all_roles_and_names_reach_the_template() {
    for role in ["system", "developer", "user", "assistant", "tool", "function"] {
        let list = message_list(&format!(r#"[{{"role":"{role}","content":"x","name":"bob"}}]"#));
        assert_eq!(list, json!([{"role": role, "content": "x", "name": "bob"}]));
    }
}

#[test]
fn template_options_are_read() {
    let body = r#"{"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"So"}],
        "continue_final_message":true,"reasoning_effort":"low","chat_template_kwargs":{"thinking":false}}"#;
    let template = ChatRequest::parse(body.as_bytes()).unwrap().template;
    assert!(template.continue_final_message && !template.add_generation_prompt);
    assert_eq!(
        Value::Object(template.kwargs),
        json!({"thinking": false, "reasoning_effort": "low"})
    );
    assert!(
        !chat(r#""add_generation_prompt":false"#)
            .unwrap()
            .template
            .add_generation_prompt
    );
}

#[test]
fn completions_take_all_four_forms_of_a_prompt() {
    for (prompt, expected) in [
        (r#""one""#, vec![text("one")]),
        (r#"["one"]"#, vec![text("one")]),
        (r#"["one","two"]"#, vec![text("one"), text("two")]),
        ("[1,2]", vec![Prompt::Ids(vec![1, 2])]),
        ("[[1,2],[3]]", vec![Prompt::Ids(vec![1, 2]), Prompt::Ids(vec![3])]),
    ] {
        assert_eq!(
            completion(&format!(r#""prompt":{prompt}"#)).unwrap().prompts,
            expected,
            "{prompt}"
        );
    }
    let list = completion(r#""prompt":["x"],"echo":true,"logprobs":1"#).unwrap();
    assert_eq!(
        list,
        completion(r#""prompt":"x","echo":true,"logprobs":1"#).unwrap()
    );
}

#[test]
fn completions_have_their_documented_defaults() {
    let request = completion(r#""prompt":"x""#).unwrap();
    assert_eq!(request.sampling.default_max_new_tokens, Some(16));
    assert_eq!((request.echo, request.logprobs), (false, None));
    let request = completion(r#""prompt":"x","max_tokens":0,"echo":true,"logprobs":0,"best_of":1"#).unwrap();
    assert_eq!(
        (request.sampling.max_new_tokens, request.logprobs),
        (Some(0), Some(0))
    );
}

#[test]
fn a_native_request_becomes_one_item_per_prompt() {
    let request = generate(
        r#""text":["a","b"],"sampling_params":[{"n":2,"temperature":0},{"n":2}],"rid":["r","s"],"priority":-7,
           "return_logprob":[true,false],"logprob_start_len":[0,5],"top_logprobs_num":2,
           "token_ids_logprob":[[7],null],"extra_key":["k",null],"cache_salt":"salt","stream":true,
           "lora_path":["a",null],
           "return_text_in_logprobs":true,"log_metrics":false"#,
    )
    .unwrap();
    assert!(request.is_batch && request.stream && request.return_text_in_logprobs);
    let [first, second] = request.items.as_slice() else {
        panic!("two prompts")
    };
    assert_eq!((&first.prompt, &second.prompt), (&text("a"), &text("b")));
    assert_eq!(
        (first.sampling.temperature, second.sampling.temperature),
        (Some(0.0), None)
    );
    assert_eq!(
        first.logprobs,
        Some(LogprobRequest {
            start_len: 0,
            top_num: 2,
            token_ids: vec![7]
        })
    );
    assert_eq!(second.logprobs, None);
    let routing = |rid: &str, key: Option<&str>| Routing {
        rid: Some(rid.to_owned()),
        extra_key: key.map(str::to_owned),
        cache_salt: Some("salt".to_owned()),
        priority: Some(-7),
        lora_path: key.map(|_| "a".to_owned()),
        ..Routing::default()
    };
    assert_eq!(
        (&first.routing, &second.routing),
        (&routing("r", Some("k")), &routing("s", None))
    );
}

#[test]
fn a_single_native_prompt_is_no_batch() {
    for (prompt, expected, is_batch) in [
        (r#""text":"a""#, text("a"), false),
        (r#""text":["a"]"#, text("a"), true),
        (r#""input_ids":[1,2]"#, Prompt::Ids(vec![1, 2]), false),
        (r#""input_ids":[[1,2]]"#, Prompt::Ids(vec![1, 2]), true),
    ] {
        let request = generate(prompt).unwrap();
        assert_eq!(
            (&request.items[0].prompt, request.is_batch),
            (&expected, is_batch)
        );
        assert_eq!(request.items[0].sampling.default_max_new_tokens, Some(128));
    }
    let request =
        generate(r#""text":"a","return_logprob":true,"sampling_params":{"max_new_tokens":0}"#).unwrap();
    assert_eq!(request.items[0].sampling.max_new_tokens, Some(0));
    assert_eq!(
        request.items[0].logprobs,
        Some(LogprobRequest {
            start_len: -1,
            top_num: 0,
            token_ids: vec![]
        })
    );
}

#[test]
fn one_request_id_of_a_batch_is_numbered() {
    let rids = |fields: &str| -> Vec<Option<String>> {
        generate(fields)
            .unwrap()
            .items
            .into_iter()
            .map(|item| item.routing.rid)
            .collect()
    };
    assert_eq!(
        rids(r#""text":["a","b"],"rid":"r""#),
        [Some("r_0".to_owned()), Some("r_1".to_owned())]
    );
    assert_eq!(rids(r#""text":"a","rid":"r""#), [Some("r".to_owned())]);
    assert_eq!(rids(r#""text":"a""#), [None]);
}

#[test]
fn token_requests_are_read() {
    let request = tokenize(r#""prompt":"x","add_special_tokens":false"#).unwrap();
    assert_eq!(
        request.input,
        TokenizeInput::Prompts(OneOrMany::One("x".to_owned()))
    );
    assert!(!request.add_special_tokens);
    assert!(matches!(
        tokenize(r#""prompt":["x",""]"#).unwrap().input,
        TokenizeInput::Prompts(OneOrMany::Many(_))
    ));
    let request =
        tokenize(r#""messages":[{"role":"user","content":"x"}],"add_generation_prompt":false"#).unwrap();
    let TokenizeInput::Chat { messages, template } = request.input else {
        panic!("a chat")
    };
    assert_eq!(messages, json!([{"role": "user", "content": "x"}]));
    assert!(!template.add_generation_prompt);
    assert_eq!(
        detokenize(r#""tokens":[]"#).unwrap().tokens,
        OneOrMany::One(vec![])
    );
    let request = detokenize(r#""tokens":[[1],[]],"skip_special_tokens":false"#).unwrap();
    assert_eq!(
        (request.tokens, request.skip_special_tokens),
        (OneOrMany::Many(vec![vec![1], vec![]]), false)
    );
}
