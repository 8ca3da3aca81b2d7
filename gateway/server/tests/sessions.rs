//! Sessions: opened on one worker, served there alone, and lost with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use common::{MODEL, Rig, card, chat, with, worker};
use http::Method;
use serde_json::{Value, json};
use smg_simulator::{Code, Script, SimulatedEngineBuilder};

/// A worker that opens and closes sessions, and does nothing else that is asked of it.
fn keeper() -> SimulatedEngineBuilder {
    worker().control(|name, args| match name {
        "open_session" | "close_session" => Ok(json!({"session_id": args["session_id"]})),
        other => Err(format!("no {other}")),
    })
}

async fn open(rig: &Rig, more: Value) -> String {
    let body = with(json!({"capacity_of_str_len": 1000}), more);
    let answer = rig.post("/open_session", &body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body_json().as_str().unwrap().to_owned()
}

fn turn(session: &str) -> Value {
    json!({"text": "hi", "session_params": {"id": session}})
}

/// The worker that got so many generations.
fn worker_with(rig: &Rig, num_requests: u64) -> usize {
    let counts = rig.engines.iter().map(|engine| engine.counts().requests);
    counts
        .clone()
        .position(|count| count == num_requests)
        .unwrap_or_else(|| panic!("{:?}", counts.collect::<Vec<_>>()))
}

#[tokio::test(start_paused = true)]
async fn all_requests_of_a_session_go_to_the_worker_that_has_it() {
    let rig = Rig::with_options([keeper(), keeper(), keeper()], &json!({"policy": "round_robin"})).await;
    let session = open(&rig, json!({"streaming": true, "timeout": 60})).await;
    for _ in 0..3 {
        assert_eq!(rig.post("/generate", &turn(&session)).await.status, 200);
    }
    let body = with(chat("hi"), json!({"session_id": session}));
    assert_eq!(rig.post("/v1/chat/completions", &body).await.status, 200);
    let body = json!({"prompt": "hi", "session_id": session});
    assert_eq!(rig.post("/v1/completions", &body).await.status, 200);
    let record = rig.engines[worker_with(&rig, 5)].record();
    let expected =
        json!({"capacity_of_str_len": 1000, "session_id": session, "streaming": true, "timeout": 60.0});
    assert_eq!(record.operations, [("open_session".to_owned(), expected)]);
    // Requests without a session are spread as ever.
    for _ in 0..3 {
        assert_eq!(rig.post("/generate", &json!({"text": "hi"})).await.status, 200);
    }
    let mut counts: Vec<u64> = rig
        .engines
        .iter()
        .map(|engine| engine.counts().requests)
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [1, 1, 6]);
}

#[tokio::test(start_paused = true)]
async fn the_worker_is_told_what_is_continued_and_by_which_id_the_turn_is_known() {
    let rig = Rig::start([keeper()]).await;
    let session = open(&rig, json!({"session_id": "talk"})).await;
    assert_eq!(session, "talk");
    let headers = [
        ("x-request-id", "always-the-same"),
        ("x-smg-routing-key", "tenant"),
    ];
    let body = Bytes::from(turn("talk").to_string());
    let first = rig
        .send(Method::POST, "/generate", &headers, body.clone())
        .await
        .whole()
        .await;
    let first = first.body_json()["meta_info"]["id"].as_str().unwrap().to_owned();
    let more = json!({
        "text": "hi", "rid": "second", "routing_key": "own", "priority": -2, "custom_logit_processor": "{}",
        "require_reasoning": true,
        "sampling_params": {"custom_params": {"budget": 3}},
        "session_params": {"id": "talk", "rid": first, "offset": 2, "replace": true, "drop_previous_output": true}
    });
    let second = rig.post("/generate", &more).await.body_json();
    assert_eq!(second["meta_info"]["id"], "second");
    let third = rig
        .send(Method::POST, "/generate", &headers, body)
        .await
        .whole()
        .await;
    assert_ne!(third.body_json()["meta_info"]["id"], first);

    let requests = rig.engines[0].record().requests;
    let [one, two] = [&requests[0].message, &requests[1].message];
    assert_eq!(
        (one.request_id.as_str(), one.routing_key.as_deref()),
        (first.as_str(), Some("tenant"))
    );
    let plain = one.session.as_ref().unwrap();
    assert_eq!(
        (plain.id.as_str(), &plain.rid, plain.offset),
        ("talk", &None, None)
    );
    assert!(!plain.replace && !plain.drop_previous_output);
    assert_eq!(
        (two.request_id.as_str(), two.routing_key.as_deref()),
        ("second", Some("own"))
    );
    assert_eq!(
        (two.priority, two.custom_logit_processor.as_str()),
        (Some(-2), "{}")
    );
    assert!(!one.require_reasoning && two.require_reasoning);
    let cut = two.session.as_ref().unwrap();
    assert_eq!((cut.rid.as_deref(), cut.offset), (Some(first.as_str()), Some(2)));
    assert!(cut.replace && cut.drop_previous_output);
    let params = two
        .sampling_params
        .as_ref()
        .unwrap()
        .custom_params
        .as_ref()
        .unwrap();
    assert!(params.fields.contains_key("budget"));
}

#[tokio::test(start_paused = true)]
async fn a_session_is_open_once_until_it_is_closed() {
    let rig = Rig::start([keeper(), keeper()]).await;
    rig.post("/generate", &turn("s"))
        .await
        .assert_error(404, "session_not_found");
    rig.post("/close_session", &json!({"session_id": "s"}))
        .await
        .assert_error(404, "session_not_found");
    open(&rig, json!({"session_id": "s"})).await;
    rig.post(
        "/open_session",
        &json!({"capacity_of_str_len": 1, "session_id": "s"}),
    )
    .await
    .assert_error(400, "session_exists");
    assert_eq!(rig.post("/generate", &turn("s")).await.status, 200);
    let closed = rig
        .send(
            Method::GET,
            "/close_session",
            &[],
            Bytes::from(r#"{"session_id":"s"}"#),
        )
        .await;
    assert_eq!(closed.status(), 200);
    let record = rig.engines[worker_with(&rig, 1)].record();
    assert_eq!(
        record.operations[1],
        ("close_session".to_owned(), json!({"session_id": "s"}))
    );
    rig.post("/generate", &turn("s"))
        .await
        .assert_error(404, "session_not_found");
    open(&rig, json!({"session_id": "s"})).await;
    rig.post("/open_session", &json!({}))
        .await
        .assert_error(400, "missing_field");
    rig.post(
        "/generate",
        &with(turn("s"), json!({"sampling_params": {"n": 2}})),
    )
    .await
    .assert_error(400, "invalid_value");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_refuses_to_open_leaves_the_name_free() {
    let num_asked = Arc::new(AtomicUsize::new(0));
    let asked = num_asked.clone();
    let engine = worker().control(move |_, _| match asked.fetch_add(1, Ordering::Relaxed) {
        0 => Err("capacity_of_str_len must be at most 10".to_owned()),
        _ => Ok(json!({})),
    });
    let rig = Rig::start([engine]).await;
    let body = json!({"capacity_of_str_len": 1000, "session_id": "s"});
    let error = rig
        .post("/open_session", &body)
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["message"], "capacity_of_str_len must be at most 10");
    assert_eq!(error["param"], "capacity_of_str_len");
    rig.post("/generate", &turn("s"))
        .await
        .assert_error(404, "session_not_found");
    open(&rig, json!({"session_id": "s"})).await;

    let foreign = Rig::start([worker().without_engine_service()]).await;
    foreign
        .post("/open_session", &body)
        .await
        .assert_error(501, "not_implemented");
}

#[tokio::test(start_paused = true)]
async fn a_session_is_lost_with_the_process_that_had_it() {
    let rig = Rig::start([keeper(), keeper()]).await;
    open(&rig, json!({"session_id": "s"})).await;
    assert_eq!(rig.post("/generate", &turn("s")).await.status, 200);
    let keeps = worker_with(&rig, 1);
    rig.kill(keeps).await;
    rig.until_ready(1).await;
    // It may be a matter of the network only.
    let away = rig.post("/generate", &turn("s")).await;
    away.assert_error(503, "no_available_workers");
    assert!(away.headers.contains_key("retry-after"));
    assert_eq!(rig.engines[1 - keeps].counts().requests, 0);
    rig.restart(keeps);
    rig.until_ready(2).await;
    let error = rig
        .post("/generate", &turn("s"))
        .await
        .assert_error(410, "session_lost");
    assert!(error["message"].as_str().unwrap().contains("open another one"));
    open(&rig, json!({"session_id": "s"})).await;
    assert_eq!(rig.post("/generate", &turn("s")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_session_outlives_a_connection() {
    let rig = Rig::start([keeper()]).await;
    open(&rig, json!({"session_id": "s"})).await;
    rig.kill(0).await;
    rig.until_ready(0).await;
    rig.revive(0);
    rig.until_ready(1).await;
    assert_eq!(rig.post("/generate", &turn("s")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_session_that_ended_in_its_worker_is_not_found_and_its_name_is_free() {
    let rig = Rig::start([keeper()]).await;
    open(&rig, json!({"session_id": "s"})).await;
    rig.engines[0].set_script(Script::refusing(
        Code::InvalidArgument,
        "session_params.rid 'x' is no request of session 's'",
    ));
    let error = rig
        .post("/generate", &turn("s"))
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["param"], "session_params.rid");
    rig.engines[0].set_script(Script::refusing(
        Code::NotFound,
        "session_params.id 's' is not an open session",
    ));
    let error = rig
        .post("/generate", &turn("s"))
        .await
        .assert_error(404, "session_not_found");
    assert_eq!(error["param"], "session_params.id");
    rig.engines[0].set_script(Script::default());
    let asked = rig.engines[0].counts().requests;
    rig.post("/generate", &turn("s"))
        .await
        .assert_error(404, "session_not_found");
    assert_eq!(rig.engines[0].counts().requests, asked);
    open(&rig, json!({"session_id": "s"})).await;
    assert_eq!(rig.post("/generate", &turn("s")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_turn_is_tried_once() {
    let script = Script::refusing(Code::Unavailable, "going away");
    let rig = Rig::start([keeper().script(script.clone()), keeper().script(script)]).await;
    open(&rig, json!({"session_id": "s"})).await;
    rig.post("/generate", &turn("s"))
        .await
        .assert_error(503, "worker_unavailable");
    worker_with(&rig, 1);
    assert_eq!(
        rig.engines
            .iter()
            .map(|engine| engine.counts().requests)
            .sum::<u64>(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_session_is_one_of_its_model() {
    let rig = Rig::start([keeper(), keeper().card(card("other"))]).await;
    let body = json!({"capacity_of_str_len": 1, "session_id": "s"});
    rig.post("/open_session", &body)
        .await
        .assert_error(400, "missing_field");
    open(&rig, json!({"session_id": "s", "model": "other"})).await;
    assert_eq!(
        rig.post("/generate", &with(turn("s"), json!({"model": "other"})))
            .await
            .status,
        200
    );
    assert_eq!(rig.engines[1].counts().requests, 1);
    let error = rig
        .post("/generate", &with(turn("s"), json!({"model": MODEL})))
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["param"], "model");
}
