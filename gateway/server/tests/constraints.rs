//! Constraints on their way to the worker, and what comes back of those that it cannot honour.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{Rig, chat, tokenizer, with, worker};
use serde_json::{Value, json};
use smg_engine_client::proto::scheduler::sampling_params::Constraint;
use smg_simulator::{Outcome, Script, SimulatedEngineBuilder};

const CHAT: &str = "/v1/chat/completions";
const REFUSAL: &str = "json_schema cannot be honoured: the words of the grammar backend";

/// The three APIs with a schema each.
fn asking(schema: &Value) -> [(&'static str, Value); 3] {
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let text = schema.to_string();
    [
        (CHAT, with(chat("hi"), json!({"response_format": format}))),
        (
            "/v1/completions",
            json!({"prompt": "hi", "response_format": format}),
        ),
        (
            "/generate",
            json!({"text": "hi", "sampling_params": {"json_schema": text}}),
        ),
    ]
}

fn with_backend(name: &str) -> SimulatedEngineBuilder {
    worker().server_args(json!({"grammar_backend": name}))
}

fn aborting_after(messages: usize, status: u16) -> SimulatedEngineBuilder {
    let outcome = Outcome::AbortAfter {
        messages,
        status,
        message: REFUSAL.to_owned(),
    };
    worker().script(Script {
        outcome,
        ..Script::fixed(tokenizer::ids("abcdef"))
    })
}

#[tokio::test(start_paused = true)]
async fn schemas_reach_the_worker_as_they_were_written() {
    let rig = Rig::start([with_backend("xgrammar")]).await;
    let schema = json!({"type": "object", "properties": {"b": {}, "a": {"minLength": 1}}});
    for (path, body) in asking(&schema) {
        assert_eq!(rig.post(path, &body).await.status, 200);
    }
    for request in rig.engines[0].record().requests {
        let sampling = request.message.sampling_params.unwrap();
        assert_eq!(
            sampling.constraint,
            Some(Constraint::JsonSchema(schema.to_string()))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_schema_reaches_no_worker() {
    let rig = Rig::start([worker()]).await;
    for (path, body) in asking(&json!({"properties": {"a": {"type": "strng"}}})) {
        let error = rig.post(path, &body).await.assert_error(400, "invalid_value");
        let param = error["param"].as_str().unwrap();
        assert!(param.ends_with("/properties/a/type"), "{error}");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("`/properties/a/type` must be"),
            "{error}"
        );
    }
    assert_eq!(rig.engines[0].counts().requests, 0);
}

#[tokio::test(start_paused = true)]
async fn keywords_are_refused_where_all_workers_have_a_backend_of_ours() {
    let schema = json!({"properties": {"a": {"if": {"type": "string"}, "then": false}}});
    for (backends, is_refused) in [
        (vec!["xgrammar"], true),
        (vec!["llguidance", "xgrammar"], true),
        (vec!["xgrammar", "own"], false),
        (vec!["none"], false),
    ] {
        let rig = Rig::start(backends.iter().map(|name| with_backend(name))).await;
        for (path, body) in asking(&schema) {
            let answer = rig.post(path, &body).await;
            if !is_refused {
                assert_eq!(answer.status, 200, "{backends:?}");
                continue;
            }
            let error = answer.assert_error(400, "unsupported_parameter");
            assert!(
                error["param"].as_str().unwrap().ends_with("/properties/a/if"),
                "{error}"
            );
        }
    }
    // A plugin may take the name of one of ours.
    for (source, status) in [
        ("sglang.srt.constrained.xgrammar_backend:create", 400),
        ("plugin:create", 200),
    ] {
        let told = json!({"grammar_backend": "xgrammar", "grammar_backend_source": source});
        let rig = Rig::start([worker().server_args(told)]).await;
        for (path, body) in asking(&schema) {
            assert_eq!(rig.post(path, &body).await.status, status, "{source}");
        }
    }
    // A worker that does not tell is left to its own judgement.
    let rig = Rig::start([worker()]).await;
    for (path, body) in asking(&schema) {
        assert_eq!(rig.post(path, &body).await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_of_the_backend_is_the_answer_streamed_or_not() {
    let rig = Rig::start([aborting_after(0, 400)]).await;
    for (path, body) in asking(&json!({})) {
        for stream in [false, true] {
            let answer = rig
                .post(path, &with(body.clone(), json!({"stream": stream})))
                .await;
            let error = answer.assert_error(400, "invalid_value");
            assert_eq!(error["message"], REFUSAL, "{path}");
            assert_eq!(error["param"], "json_schema");
        }
    }
    // It says nothing against the worker, which is asked once each time.
    assert_eq!(rig.engines[0].counts().requests, 6);
}

#[tokio::test(start_paused = true)]
async fn a_grammar_that_fails_in_mid_answer_ends_it_with_an_error() {
    let rig = Rig::start([aborting_after(2, 500)]).await;
    for (path, body) in asking(&json!({})) {
        rig.post(path, &body).await.assert_error(500, "worker_failed");
        let streamed = rig.post(path, &with(body, json!({"stream": true}))).await;
        assert_eq!(streamed.status, 200);
        let events = streamed.events();
        let (last, before) = events.split_last().unwrap();
        assert_eq!(last["error"]["message"], REFUSAL, "{path}");
        assert!(!before.is_empty());
        for event in before {
            assert!(event["choices"][0]["finish_reason"].is_null(), "{event}");
            assert!(event["meta_info"]["finish_reason"].is_null(), "{event}");
        }
    }
}
