//! Tools: what the model is told of them, and calls that it has to make, streamed and whole.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{Rig, chat, tokenizer, with, worker};
use serde_json::{Map, Value, json};
use smg_engine_client::proto::scheduler::sampling_params::Constraint;
use smg_simulator::{Script, SimulatedEngineBuilder};

const CHAT: &str = "/v1/chat/completions";
const ARGUMENTS: &str = r#"{"city": "Zürich", "days": [1, {"a]": "}\""}]}"#;

fn says(text: &str, tokens_per_message: usize) -> SimulatedEngineBuilder {
    worker().script(Script {
        tokens_per_message,
        ..Script::fixed(tokenizer::ids(text))
    })
}

fn two_calls() -> String {
    format!(r#"[{{"name": "weather", "parameters": {ARGUMENTS}}}, {{"name":"now","parameters":{{}}}}]"#)
}

fn tools() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "weather", "parameters": parameters}},
    ])
}

fn asking(choice: &Value) -> Value {
    with(chat("hi"), json!({"tools": tools(), "tool_choice": choice}))
}

fn weather() -> Value {
    json!({"type": "function", "function": {"name": "weather"}})
}

fn streamed(body: &Value) -> Value {
    with(
        body.clone(),
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    )
}

/// The message of an answer put together from its chunks, the reason of its end, and its logprobs.
fn joined(events: &[Value], index: u64) -> (Vec<(String, String)>, Value, Vec<Value>) {
    let (mut calls, mut reasons, mut logprobs) = (Vec::<(String, String)>::new(), Vec::new(), Vec::new());
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    for (position, choice) in choices.filter(|choice| choice["index"] == index).enumerate() {
        logprobs.extend(
            choice["logprobs"]["content"]
                .as_array()
                .into_iter()
                .flatten()
                .cloned(),
        );
        let delta = &choice["delta"];
        if position == 0 {
            assert_eq!(delta, &json!({"role": "assistant", "content": null}));
        } else {
            assert!(delta.get("content").is_none());
        }
        if !choice["finish_reason"].is_null() {
            assert_eq!(delta, &json!({}));
            reasons.push(choice["finish_reason"].clone());
        }
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            assert!(reasons.is_empty());
            if call.get("id").is_some() {
                assert_eq!(call["index"], calls.len());
                assert_id(&call["id"]);
                assert_eq!(
                    (&call["type"], &call["function"]["arguments"]),
                    (&json!("function"), &json!(""))
                );
                let name = call["function"]["name"].as_str().unwrap();
                calls.push((name.to_owned(), String::new()));
            } else {
                assert_eq!(call["index"], calls.len() - 1);
                assert_eq!(call.as_object().unwrap().len(), 2);
                let arguments = call["function"]["arguments"].as_str().unwrap();
                calls.last_mut().unwrap().1.push_str(arguments);
            }
        }
    }
    assert_eq!(reasons.len(), 1);
    (calls, reasons.remove(0), logprobs)
}

/// The same of a whole answer.
fn whole(choice: &Value) -> (Vec<(String, String)>, Value, Vec<Value>) {
    let message = &choice["message"];
    assert_eq!(
        (&message["role"], &message["content"]),
        (&json!("assistant"), &Value::Null)
    );
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls = calls.map(|call| {
        assert_id(&call["id"]);
        assert_eq!(call["type"], "function");
        let text = |key: &str| call["function"][key].as_str().unwrap().to_owned();
        (text("name"), text("arguments"))
    });
    let logprobs = choice["logprobs"]["content"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    (calls.collect(), choice["finish_reason"].clone(), logprobs)
}

fn assert_id(id: &Value) {
    let digits = id.as_str().unwrap().strip_prefix("call_").unwrap();
    assert!(
        digits.len() == 24 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{digits}"
    );
}

fn call(name: &str, arguments: &str) -> (String, String) {
    (name.to_owned(), arguments.to_owned())
}

#[tokio::test(start_paused = true)]
async fn required_calls_come_whole_and_in_pieces_of_any_length() {
    let expected = [call("weather", ARGUMENTS), call("now", "{}")];
    for tokens_per_message in [1, 2, 3, 7, 20, 1000] {
        let rig = Rig::start([says(&two_calls(), tokens_per_message)]).await;
        let body = asking(&json!("required"));
        let answer = rig.post(CHAT, &body).await.body_json();
        let events = rig.post(CHAT, &streamed(&body)).await.events();
        for (calls, reason, _) in [whole(&answer["choices"][0]), joined(&events, 0)] {
            assert_eq!(calls, expected);
            assert_eq!(reason, "tool_calls");
        }
        assert_eq!(events.last().unwrap()["usage"], answer["usage"]);
        let ids = |call: usize| &answer["choices"][0]["message"]["tool_calls"][call]["id"];
        assert_ne!(ids(0), ids(1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_named_function_gets_its_arguments() {
    let rig = Rig::start([says(ARGUMENTS, 1)]).await;
    let body = asking(&weather());
    let answer = rig.post(CHAT, &body).await.body_json();
    let events = rig.post(CHAT, &streamed(&body)).await.events();
    for (calls, reason, _) in [whole(&answer["choices"][0]), joined(&events, 0)] {
        assert_eq!(calls, [call("weather", ARGUMENTS)]);
        assert_eq!(reason, "tool_calls");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_limit_or_a_stop_cuts_keeps_its_reason() {
    let rig = Rig::start([says(&two_calls(), 1)]).await;
    let start = r#"[{"name": "weather", "parameters": "#.len();
    for (more, calls, reason) in [
        (json!({"max_tokens": start}), vec![call("weather", "")], "length"),
        (
            json!({"max_tokens": start + 8}),
            vec![call("weather", r#"{"city":"#)],
            "length",
        ),
        (json!({"max_tokens": 5}), vec![], "length"),
        (
            json!({"stop": ["Z"]}),
            vec![call("weather", r#"{"city": ""#)],
            "stop",
        ),
    ] {
        let body = with(asking(&json!("required")), more);
        let answer = rig.post(CHAT, &body).await.body_json();
        let events = rig.post(CHAT, &streamed(&body)).await.events();
        for told in [whole(&answer["choices"][0]), joined(&events, 0)] {
            assert_eq!((told.0, told.1), (calls.clone(), json!(reason)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn several_answers_and_logprobs_keep_their_places() {
    let text = two_calls();
    let rig = Rig::start([says(&text, 3)]).await;
    let body = with(asking(&json!("required")), json!({"n": 2, "logprobs": true}));
    let answer = rig.post(CHAT, &body).await.body_json();
    let events = rig.post(CHAT, &streamed(&body)).await.events();
    for index in [0, 1] {
        let told = whole(&answer["choices"][index as usize]);
        assert_eq!(told.0.len(), 2);
        assert_eq!(told.2.len(), text.len());
        assert_eq!(joined(&events, index), told);
    }
    assert_eq!(events.last().unwrap()["usage"], answer["usage"]);
}

#[tokio::test(start_paused = true)]
async fn calls_are_held_to_a_schema_and_text_is_not() {
    let rig = Rig::start([says("plain", 1)]).await;
    for (choice, kind) in [
        (json!("required"), Some("array")),
        (weather(), Some("object")),
        (json!("auto"), None),
    ] {
        rig.post(CHAT, &asking(&choice)).await;
        let request = rig.engines[0].record().requests.pop().unwrap();
        let schema = match request.message.sampling_params.unwrap().constraint {
            Some(Constraint::JsonSchema(text)) => {
                Some(serde_json::from_str::<Map<String, Value>>(&text).unwrap())
            }
            None => None,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            schema.map(|schema| schema["type"].clone()),
            kind.map(|kind| json!(kind))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_template_gets_the_tools_unless_the_choice_is_none() {
    let rig = Rig::start([says("text", 1)]).await;
    for (choice, is_shown) in [(Value::Null, true), (json!("auto"), true), (json!("none"), false)] {
        let body = with(
            asking(&choice),
            json!({"response_format": {"type": "json_object"}}),
        );
        let answer = rig.post(CHAT, &body).await.body_json();
        let message = &answer["choices"][0]["message"];
        assert_eq!(message, &json!({"role": "assistant", "content": "text"}));
        assert_eq!(answer["choices"][0]["finish_reason"], "stop");
        let shown = prompt(&rig).contains("weather");
        assert_eq!(shown, is_shown, "{choice}");
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_the_history_and_their_results_are_in_the_prompt() {
    let rig = Rig::start([says("text", 1)]).await;
    let old = json!([{"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": "{\"city\":\"Bern\"}"}}]);
    let messages = json!([
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": null, "tool_calls": old},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "sunny"}]},
    ]);
    let answer = rig
        .post(CHAT, &with(asking(&json!("auto")), json!({"messages": messages})))
        .await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let prompt = prompt(&rig);
    for words in [r#"weather{"city": "Bern"}"#, "tool\nsunny"] {
        assert!(prompt.contains(words), "{prompt}");
    }
}

/// The text of the last prompt that the worker got.
fn prompt(rig: &Rig) -> String {
    let request = rig.engines[0].record().requests.pop().unwrap().message;
    let ids = request.tokenized.unwrap().input_ids;
    let bytes: Vec<u8> = ids.into_iter().filter_map(|id| u8::try_from(id).ok()).collect();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test(start_paused = true)]
async fn text_of_a_worker_that_applies_no_constraint_is_no_answer() {
    let rig = Rig::start([says("Sure, it is sunny.", 4)]).await;
    for choice in [json!("required"), weather()] {
        let error = rig
            .post(CHAT, &asking(&choice))
            .await
            .assert_error(502, "worker_failed");
        assert!(
            error["message"].as_str().unwrap().contains("tool_choice"),
            "{error}"
        );
        let events = rig.post(CHAT, &streamed(&asking(&choice))).await.events();
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["error"]["code"], "worker_failed");
        for event in before {
            assert!(event["choices"][0]["finish_reason"].is_null());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_whole_counts_whatever_follows_it() {
    for (end, more) in [
        (Some(tokenizer::EOS), json!({"no_stop_trim": true})),
        (None, json!({})),
    ] {
        let mut tokens = tokenizer::ids(ARGUMENTS);
        tokens.extend(end);
        tokens.extend(tokenizer::ids("\n"));
        let rig = Rig::start([worker().script(Script::fixed(tokens))]).await;
        let body = with(
            asking(&weather()),
            with(more, json!({"skip_special_tokens": false})),
        );
        let (calls, reason, _) = whole(&rig.post(CHAT, &body).await.body_json()["choices"][0]);
        assert_eq!(
            (calls, reason),
            (vec![call("weather", ARGUMENTS)], json!("tool_calls"))
        );
    }
}
