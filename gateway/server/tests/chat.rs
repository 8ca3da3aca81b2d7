//! Chat: the streamed answer is the whole one in pieces, in every respect.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{MODEL, Rig, chat, tokenizer, with, worker};
use serde_json::{Value, json};
use smg_simulator::Script;

fn says(text: &str) -> smg_simulator::SimulatedEngineBuilder {
    worker().script(Script {
        cached_tokens: 3,
        ..Script::fixed(tokenizer::ids(text))
    })
}

/// Joined content of the chunks without a reason, per index.
fn content(events: &[Value], index: u64) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    choices
        .filter(|choice| choice["index"] == index && choice["finish_reason"].is_null())
        .map(|choice| choice["delta"]["content"].as_str().unwrap())
        .collect()
}

fn closing(events: &[Value], index: u64) -> Vec<&Value> {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    choices
        .filter(|choice| choice["index"] == index && !choice["finish_reason"].is_null())
        .collect()
}

async fn both(rig: &Rig, body: Value) -> (Value, Vec<Value>) {
    let whole = rig.post("/v1/chat/completions", &body).await;
    assert_eq!(whole.status, 200, "{whole:?}");
    let streamed = with(
        body,
        json!({"stream": true, "stream_options": {"include_usage": true}}),
    );
    let events = rig.post("/v1/chat/completions", &streamed).await.events();
    (whole.body_json(), events)
}

#[tokio::test(start_paused = true)]
async fn joined_chunks_equal_the_whole_text() {
    let rig = Rig::start([says("Grüße, 東京!")]).await;
    let (whole, events) = both(&rig, chat("hi")).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "Grüße, 東京!");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(content(&events, 0), "Grüße, 東京!");
    assert_eq!(
        events[0]["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    let closing = closing(&events, 0);
    assert_eq!(closing.len(), 1);
    assert_eq!(closing[0]["delta"], json!({}));
    assert_eq!(
        (&whole["model"], &whole["object"]),
        (&json!(MODEL), &json!("chat.completion"))
    );
}

#[tokio::test(start_paused = true)]
async fn usage_is_null_in_chunks_and_equal_at_the_end() {
    let rig = Rig::start([says("four")]).await;
    let (whole, mut events) = both(&rig, chat("hi")).await;
    let last = events.pop().unwrap();
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"], whole["usage"]);
    assert_eq!(last["usage"]["completion_tokens"], 4);
    assert_eq!(last["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    assert!(
        events
            .iter()
            .all(|event| event.get("usage") == Some(&Value::Null))
    );
}

#[tokio::test(start_paused = true)]
async fn the_prompt_is_the_rendered_template() {
    let rig = Rig::start([says("x")]).await;
    rig.post("/v1/chat/completions", &chat("hi")).await;
    let sent = rig.engines[0].record().requests[0].message.clone();
    let mut expected = vec![tokenizer::TURN_START];
    expected.extend(tokenizer::ids("user\nhi"));
    expected.push(tokenizer::EOS);
    expected.extend(tokenizer::ids("\n"));
    expected.push(tokenizer::TURN_START);
    expected.extend(tokenizer::ids("assistant\n"));
    let num_tokens = expected.len() as u32;
    assert_eq!(sent.tokenized.unwrap().input_ids, expected);
    // Without a limit of the client's the answer may fill the context.
    assert_eq!(
        sent.sampling_params.unwrap().max_new_tokens,
        Some(common::CONTEXT - num_tokens)
    );
}

#[tokio::test(start_paused = true)]
async fn two_answers_have_their_own_indexes() {
    let rig = Rig::start([says("ab")]).await;
    let (whole, events) = both(&rig, with(chat("hi"), json!({"n": 2}))).await;
    let indexes: Vec<_> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|choice| &choice["index"])
        .collect();
    assert_eq!(indexes, [0, 1]);
    for index in [0, 1] {
        assert_eq!(content(&events, index), "ab");
        assert_eq!(closing(&events, index).len(), 1);
    }
    assert_eq!(whole["usage"]["completion_tokens"], 4);
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
}

#[tokio::test(start_paused = true)]
async fn a_stop_string_across_tokens_ends_answer_and_worker() {
    let rig = Rig::start([says("is it so?\n\nUser: no")]).await;
    let (whole, events) = both(&rig, with(chat("hi"), json!({"stop": ["\n\nUser"]}))).await;
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "is it so?");
    assert_eq!(choice["finish_reason"], "stop");
    assert_eq!(choice["matched_stop"], "\n\nUser");
    assert_eq!(content(&events, 0), "is it so?");
    assert_eq!(closing(&events, 0)[0]["matched_stop"], "\n\nUser");
    // The tokens up to and including the match.
    assert_eq!(whole["usage"]["completion_tokens"], "is it so?\n\nUser".len());
    assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
    rig.engines[0]
        .wait_until(|record| record.counts.aborts == 2)
        .await;
    assert_eq!(
        rig.engines[0].record().requests[0]
            .message
            .sampling_params
            .as_ref()
            .unwrap()
            .stop,
        ["\n\nUser"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_end_token_is_counted_and_not_shown() {
    let mut tokens = tokenizer::ids("ok");
    tokens.push(tokenizer::EOS);
    let script = Script {
        matched_stop: Some(smg_engine_client::Matched::Token(tokenizer::EOS)),
        ..Script::fixed(tokens)
    };
    let rig = Rig::start([worker().script(script)]).await;
    for skip in [true, false] {
        let (whole, events) = both(&rig, with(chat("hi"), json!({"skip_special_tokens": skip}))).await;
        assert_eq!(whole["choices"][0]["message"]["content"], "ok");
        assert_eq!(whole["choices"][0]["matched_stop"], tokenizer::EOS);
        assert_eq!(content(&events, 0), "ok");
        assert_eq!(whole["usage"]["completion_tokens"], 3);
        assert_eq!(events.last().unwrap()["usage"], whole["usage"]);
    }
}

#[tokio::test(start_paused = true)]
async fn logprobs_have_one_entry_per_token_with_its_bytes() {
    let rig = Rig::start([says("é!")]).await;
    let (whole, events) = both(&rig, with(chat("hi"), json!({"logprobs": true, "max_tokens": 3}))).await;
    let entries = whole["choices"][0]["logprobs"]["content"]
        .as_array()
        .unwrap()
        .clone();
    let bytes: Vec<_> = entries.iter().map(|entry| entry["bytes"].clone()).collect();
    assert_eq!(bytes, [json!([0xC3]), json!([0xA9]), json!([0x21])]);
    assert!(
        entries
            .iter()
            .all(|entry| entry["top_logprobs"] == json!([]) && entry["logprob"].is_number())
    );
    let streamed: Vec<Value> = events
        .iter()
        .filter_map(|event| event["choices"][0]["logprobs"]["content"].as_array())
        .flatten()
        .cloned()
        .collect();
    assert_eq!(streamed, entries);
}

#[tokio::test(start_paused = true)]
async fn a_character_cut_by_the_limit_ends_in_a_replacement() {
    let rig = Rig::start([says("a東")]).await;
    let (whole, events) = both(&rig, with(chat("hi"), json!({"max_tokens": 2}))).await;
    assert_eq!(whole["choices"][0]["message"]["content"], "a\u{FFFD}");
    assert_eq!(whole["choices"][0]["finish_reason"], "length");
    assert_eq!(content(&events, 0), "a\u{FFFD}");
}

#[tokio::test(start_paused = true)]
async fn the_clients_values_beat_the_models_and_those_the_built_in_ones() {
    let mut card = common::card(MODEL);
    card.default_sampling_params_json = r#"{"temperature": 0.6, "top_k": 20}"#.to_owned();
    let rig = Rig::start([worker().card(card)]).await;
    rig.post(
        "/v1/chat/completions",
        &with(chat("hi"), json!({"temperature": 0.1})),
    )
    .await;
    let sampling = rig.engines[0].record().requests[0]
        .message
        .sampling_params
        .clone()
        .unwrap();
    assert_eq!(
        (sampling.temperature, sampling.top_k, sampling.top_p),
        (0.1, 20, 1.0)
    );
}

#[tokio::test(start_paused = true)]
async fn the_request_id_and_the_trace_reach_the_worker_and_the_answer() {
    let rig = Rig::start([says("x")]).await;
    let headers = [
        ("content-type", "application/json"),
        ("x-request-id", "req-7"),
        ("traceparent", "00-aa-bb-01"),
    ];
    let body = chat("hi").to_string().into();
    let answer = rig
        .send(http::Method::POST, "/v1/chat/completions", &headers, body)
        .await
        .whole()
        .await;
    assert_eq!(answer.headers["x-request-id"], "req-7");
    assert_eq!(answer.body_json()["id"], "req-7");
    let record = rig.engines[0].record();
    assert_eq!(record.requests[0].metadata("traceparent"), Some("00-aa-bb-01"));
    assert_eq!(record.requests[0].metadata("x-request-id"), Some("req-7"));
    assert!(record.requests[0].message.request_id.starts_with("req-7-"));
}
