//! Text completions: several prompts, echo, logprobs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{MODEL, Rig, tokenizer, with, worker};
use serde_json::{Value, json};
use smg_simulator::{Script, SimulatedEngineBuilder, Style, Tokens};

fn completion(prompt: Value) -> Value {
    json!({"model": MODEL, "prompt": prompt, "max_tokens": 4})
}

/// Answers with the prompt.
fn parrot() -> SimulatedEngineBuilder {
    worker().script(Script {
        tokens: Tokens::Echo,
        ..Script::default()
    })
}

fn text(events: &[Value], index: u64) -> String {
    let choices = events.iter().filter_map(|event| event["choices"].get(0));
    choices
        .filter(|choice| choice["index"] == index)
        .map(|choice| choice["text"].as_str().unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn every_prompt_has_its_answers_in_order() {
    let rig = Rig::start([parrot(), parrot()]).await;
    let body = with(completion(json!(["one", "two"])), json!({"n": 2}));
    let whole = rig.post("/v1/completions", &body).await.body_json();
    let choices: Vec<_> = whole["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (&c["index"], &c["text"]))
        .collect();
    let expected = [(0, "one"), (1, "one"), (2, "two"), (3, "two")].map(|(i, t)| (json!(i), json!(t)));
    assert_eq!(choices, expected.iter().map(|(i, t)| (i, t)).collect::<Vec<_>>());
    assert_eq!(whole["usage"]["prompt_tokens"], 6);
    assert_eq!(whole["usage"]["completion_tokens"], 12);

    let events = rig
        .post("/v1/completions", &with(body, json!({"stream": true})))
        .await
        .events();
    assert_eq!(
        [0, 1, 2, 3].map(|index| text(&events, index)),
        ["one", "one", "two", "two"]
    );
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[tokio::test(start_paused = true)]
async fn an_echoed_prompt_comes_first_whatever_its_form() {
    let rig = Rig::start([worker().script(Script::fixed(tokenizer::ids("!")))]).await;
    let options = json!({"echo": true, "logprobs": 1, "max_tokens": 1, "temperature": 0});
    let mut bodies = Vec::new();
    for prompt in [
        json!("Hé"),
        json!(["Hé"]),
        json!(tokenizer::ids("Hé")),
        json!([tokenizer::ids("Hé")]),
    ] {
        let answer = rig
            .post("/v1/completions", &with(completion(prompt), options.clone()))
            .await;
        let mut body = answer.body_json();
        body["id"] = Value::Null;
        bodies.push(body);
    }
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:#?}");
    let choice = &bodies[0]["choices"][0];
    assert_eq!(choice["text"], "Hé!");
    let logprobs = &choice["logprobs"];
    assert_eq!(logprobs["tokens"].as_array().unwrap().len(), 4);
    assert_eq!(logprobs["token_logprobs"][0], Value::Null);
    assert_eq!(logprobs["top_logprobs"][0], Value::Null);
    // The second byte of `é` begins no character.
    assert_eq!(logprobs["text_offset"], json!([0, 1, 2, 2]));
}

#[tokio::test(start_paused = true)]
async fn streamed_echo_and_logprobs_join_to_the_whole_ones() {
    let rig = Rig::start([worker().script(Script::fixed(tokenizer::ids("ab")))]).await;
    let body = with(completion(json!("xy")), json!({"echo": true, "logprobs": 2}));
    let whole = rig.post("/v1/completions", &body).await.body_json();
    let events = rig
        .post("/v1/completions", &with(body, json!({"stream": true})))
        .await
        .events();
    assert_eq!(text(&events, 0), whole["choices"][0]["text"]);
    for list in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let joined: Vec<Value> = events
            .iter()
            .filter_map(|event| event["choices"][0]["logprobs"][list].as_array())
            .flatten()
            .cloned()
            .collect();
        assert_eq!(json!(joined), whole["choices"][0]["logprobs"][list], "{list}");
    }
}

#[tokio::test(start_paused = true)]
async fn zero_logprobs_give_the_chosen_tokens_only() {
    let rig = Rig::start([parrot()]).await;
    let body = with(completion(json!("abc")), json!({"logprobs": 0, "max_tokens": 3}));
    let logprobs = rig.post("/v1/completions", &body).await.body_json()["choices"][0]["logprobs"].clone();
    assert_eq!(logprobs["tokens"], json!(["a", "b", "c"]));
    assert_eq!(logprobs["top_logprobs"], json!([null, null, null]));
}

#[tokio::test(start_paused = true)]
async fn no_new_tokens_give_the_prompt_and_its_logprobs() {
    let script = Script {
        tokens: Tokens::Echo,
        style: Style::WholeOnly,
        ..Script::default()
    };
    let rig = Rig::start([worker().script(script)]).await;
    let body = with(
        completion(json!("abc")),
        json!({"logprobs": 1, "max_tokens": 0, "echo": true}),
    );
    let whole = rig.post("/v1/completions", &body).await.body_json();
    let choice = &whole["choices"][0];
    assert_eq!(
        (&choice["text"], &choice["finish_reason"]),
        (&json!("abc"), &json!("length"))
    );
    assert_eq!(choice["logprobs"]["tokens"], json!(["a", "b", "c"]));
    assert_eq!(whole["usage"]["completion_tokens"], 0);
    assert_eq!(rig.engines[0].record().requests[0].message.logprob_start_len, 0);
}

#[tokio::test(start_paused = true)]
async fn a_failed_prompt_fails_the_call_and_frees_the_others() {
    let by_prompt = |request: &smg_simulator::proto::scheduler::GenerateRequest| {
        let ids = &request.tokenized.as_ref().unwrap().input_ids;
        if *ids == tokenizer::ids("bad") {
            return Script::refusing(smg_simulator::Code::InvalidArgument, "no");
        }
        Script::ending(smg_simulator::Outcome::HangBeforeHeaders)
    };
    let rig = Rig::start([worker().script_for(by_prompt)]).await;
    let answer = rig
        .post("/v1/completions", &completion(json!(["good", "bad"])))
        .await;
    answer.assert_error(400, "invalid_value");
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1)
        .await;
    assert_eq!(rig.engines[0].num_running(), 0);
}
