//! Answers byte for byte: key order is part of the contract.

use indexmap::IndexMap;

use crate::*;

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap()
}

fn logprobs() -> ChatLogprobs {
    let top = TopLogprob {
        token: "é".to_owned(),
        logprob: f32::NEG_INFINITY,
        bytes: vec![195, 169],
    };
    let token = TokenLogprob {
        token: "\u{fffd}".to_owned(),
        logprob: -0.25,
        bytes: vec![195],
        top_logprobs: vec![top],
    };
    ChatLogprobs { content: vec![token] }
}

#[test]
fn a_whole_chat_answer() {
    let choice = ChatChoice {
        index: 0,
        message: ChatMessage::assistant("Hi".to_owned()),
        logprobs: None,
        finish_reason: FinishReason::Stop,
        matched_stop: Some(MatchedStop::Token(2)),
    };
    let answer = ChatCompletion::new(
        "id".to_owned(),
        5,
        "demo".to_owned(),
        vec![choice],
        Usage::new(3, 1, 2),
    );
    assert_eq!(
        json(&answer),
        r#"{"id":"id","object":"chat.completion","created":5,"model":"demo","choices":[{"index":0,"message":{"role":"assistant","content":"Hi"},"logprobs":null,"finish_reason":"stop","matched_stop":2}],"usage":{"prompt_tokens":3,"completion_tokens":1,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":2}}}"#
    );
}

#[test]
fn a_message_that_calls_has_no_content() {
    let mut call = ToolCall::new("call_1".to_owned(), "f".to_owned());
    call.function.arguments.push_str("{}");
    assert_eq!(
        json(&ChatMessage::calling(vec![call])),
        r#"{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{}"}}]}"#
    );
    let none = ChatMessage::calling(Vec::new());
    assert_eq!(json(&none), r#"{"role":"assistant","content":null}"#);
}

#[test]
fn a_streamed_chat_answer_opens_goes_on_and_closes() {
    let chunk = |choice| ChatChunk::new("id".to_owned(), 5, "demo".to_owned(), vec![choice]);
    let head = r#"{"id":"id","object":"chat.completion.chunk","created":5,"model":"demo","choices":["#;
    for (choice, expected) in [
        (
            ChatChunkChoice::opening(1, false),
            r#"{"index":1,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        ),
        (
            ChatChunkChoice::text(1, "Hi".to_owned(), None),
            r#"{"index":1,"delta":{"content":"Hi"},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        ),
        (
            ChatChunkChoice::opening(1, true),
            r#"{"index":1,"delta":{"role":"assistant","content":null},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        ),
        (
            ChatChunkChoice::call(1, 0, "call_1".to_owned(), "f".to_owned()),
            r#"{"index":1,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        ),
        (
            ChatChunkChoice::arguments(1, 2, "{".to_owned()),
            r#"{"index":1,"delta":{"tool_calls":[{"index":2,"function":{"arguments":"{"}}]},"logprobs":null,"finish_reason":null,"matched_stop":null}]}"#,
        ),
        (
            ChatChunkChoice::closing(1, FinishReason::ToolCalls, None),
            r#"{"index":1,"delta":{},"logprobs":null,"finish_reason":"tool_calls","matched_stop":null}]}"#,
        ),
        (
            ChatChunkChoice::closing(1, FinishReason::Length, None),
            r#"{"index":1,"delta":{},"logprobs":null,"finish_reason":"length","matched_stop":null}]}"#,
        ),
    ] {
        assert_eq!(json(&chunk(choice)), format!("{head}{expected}"));
    }
}

#[test]
fn usage_in_chunks_is_absent_null_or_a_number() {
    let mut chunk = ChatChunk::new("id".to_owned(), 5, "demo".to_owned(), vec![]);
    assert!(!json(&chunk).contains("usage"));
    chunk.usage = Some(None);
    assert!(json(&chunk).ends_with(r#""choices":[],"usage":null}"#));
    chunk.usage = Some(Some(Usage::new(1, 2, 0)));
    assert!(json(&chunk).contains(r#""usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3,"#));
}

#[test]
fn chat_logprobs_hold_raw_bytes_and_no_infinity() {
    assert_eq!(
        json(&logprobs()),
        "{\"content\":[{\"token\":\"\u{fffd}\",\"logprob\":-0.25,\"bytes\":[195],\"top_logprobs\":[{\"token\":\"é\",\"logprob\":-9999.0,\"bytes\":[195,169]}]}]}"
    );
}

#[test]
fn a_completion_with_logprobs() {
    let logprobs = CompletionLogprobs {
        tokens: vec!["a".to_owned(), "b".to_owned()],
        token_logprobs: vec![None, Some(f32::NAN)],
        top_logprobs: vec![
            None,
            Some(IndexMap::from([("b".to_owned(), -0.5), ("c".to_owned(), -1.5)])),
        ],
        text_offset: vec![0, 1],
    };
    let choice = CompletionChoice {
        index: 3,
        text: "ab".to_owned(),
        logprobs: Some(logprobs),
        finish_reason: FinishReason::Abort,
        matched_stop: Some(MatchedStop::Text("x".to_owned())),
    };
    let answer = Completion::new(
        "id".to_owned(),
        5,
        "demo".to_owned(),
        vec![choice],
        Usage::new(1, 1, 0),
    );
    assert_eq!(
        json(&answer),
        r#"{"id":"id","object":"text_completion","created":5,"model":"demo","choices":[{"index":3,"text":"ab","logprobs":{"tokens":["a","b"],"token_logprobs":[null,-9999.0],"top_logprobs":[null,{"b":-0.5,"c":-1.5}],"text_offset":[0,1]},"finish_reason":"abort","matched_stop":"x"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2,"prompt_tokens_details":{"cached_tokens":0}}}"#
    );
    let closing = CompletionChunkChoice::closing(0, FinishReason::Stop, None);
    let chunk = CompletionChunk::new("id".to_owned(), 5, "demo".to_owned(), vec![closing]);
    assert!(
        json(&chunk)
            .contains(r#"{"index":0,"text":"","logprobs":null,"finish_reason":"stop","matched_stop":null}"#)
    );
}

#[test]
fn a_native_answer() {
    let triple = LogprobTriple {
        logprob: None,
        token_id: 5,
        text: Some("a".to_owned()),
    };
    let meta_info = MetaInfo {
        id: "r".to_owned(),
        finish_reason: Some(GenerateFinish::Length { length: 1 }),
        prompt_tokens: 2,
        weight_version: "default".to_owned(),
        input_token_logprobs: Some(vec![triple]),
        output_top_logprobs: Some(vec![None]),
        completion_tokens: 1,
        cached_tokens: 1,
        e2e_latency: Some(0.5),
        ..MetaInfo::default()
    };
    let answer = GenerateResponse {
        text: "a".to_owned(),
        output_ids: vec![5],
        meta_info,
        index: None,
    };
    assert_eq!(
        json(&answer),
        r#"{"text":"a","output_ids":[5],"meta_info":{"id":"r","finish_reason":{"type":"length","length":1},"prompt_tokens":2,"weight_version":"default","num_retractions":0,"reasoning_tokens":0,"dp_rank":null,"input_token_logprobs":[[null,5,"a"]],"output_top_logprobs":[null],"completion_tokens":1,"cached_tokens":1,"e2e_latency":0.5}}"#
    );
    let event = GenerateResponse {
        index: Some(1),
        meta_info: MetaInfo::default(),
        ..answer
    };
    assert!(json(&event).contains(r#""finish_reason":null"#));
    assert!(json(&event).ends_with(r#""cached_tokens":0},"index":1}"#));
}

#[test]
fn native_finish_reasons() {
    let abort = GenerateFinish::Abort {
        message: "m".to_owned(),
        status_code: Some(400),
        err_type: None,
    };
    for (finish, expected) in [
        (
            GenerateFinish::Stop {
                matched: Some(MatchedStop::Token(2)),
            },
            r#"{"type":"stop","matched":2}"#,
        ),
        (
            GenerateFinish::Stop {
                matched: Some(MatchedStop::Text("x".to_owned())),
            },
            r#"{"type":"stop","matched":"x"}"#,
        ),
        (
            GenerateFinish::Length { length: 7 },
            r#"{"type":"length","length":7}"#,
        ),
        (
            abort,
            r#"{"type":"abort","message":"m","status_code":400,"err_type":null}"#,
        ),
    ] {
        assert_eq!(json(&finish), expected);
    }
}

#[test]
fn models_and_tokens() {
    assert_eq!(
        json(&ModelList::new(vec![ModelCard::new(
            "demo".to_owned(),
            5,
            Some(2048)
        )])),
        r#"{"object":"list","data":[{"id":"demo","object":"model","created":5,"owned_by":"sglang","root":"demo","parent":null,"max_model_len":2048}]}"#
    );
    let one = TokenizeResponse {
        tokens: OneOrMany::One(vec![1, 2]),
        count: OneOrMany::One(2),
        char_count: OneOrMany::One(5),
        max_model_len: None,
    };
    assert_eq!(
        json(&one),
        r#"{"tokens":[1,2],"count":2,"char_count":5,"max_model_len":null}"#
    );
    let many = DetokenizeResponse {
        text: OneOrMany::Many(vec!["a".to_owned()]),
    };
    assert_eq!(json(&many), r#"{"text":["a"]}"#);
}
