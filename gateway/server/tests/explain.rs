//! `POST /route/explain` says what a request would get, and does nothing.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{MODEL, Rig, address_of, chat, with, worker};
use serde_json::{Value, json};

const PROMPT: &str = "a prompt of some pages, which one worker holds after the first answer";

async fn explain(rig: &Rig, body: &Value) -> Value {
    let answer = rig.post("/route/explain", body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body_json()
}

fn of<'a>(told: &'a Value, url: &str) -> &'a Value {
    let mut candidates = told["candidates"].as_array().unwrap().iter();
    candidates.find(|each| each["worker"] == url).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_holder_is_chosen_and_each_worker_has_its_reason() {
    let rig = Rig::start([worker().cache(4, 100), worker().cache(4, 100), worker()]).await;
    let body = json!({"text": PROMPT});
    assert_eq!(rig.post("/generate", &body).await.status, 200);
    let holder = rig.only_asked();
    let told = explain(&rig, &body).await;
    let url = address_of(holder).to_string();
    assert_eq!(told["chosen"], url.as_str(), "{told}");
    assert_eq!(
        (&told["model"], &told["policy"], &told["prompt_tokens"]),
        (&json!(MODEL), &json!("cache_aware"), &json!(PROMPT.len()))
    );
    assert_eq!(told["candidates"].as_array().unwrap().len(), 3);
    let page = if holder == 2 { 16 } else { 4 };
    assert_eq!(of(&told, &url)["cached_tokens"], (PROMPT.len() - 1) / page * page);
    let scores = |told: &Value| -> Vec<f64> {
        let candidates = told["candidates"].as_array().unwrap().iter();
        candidates.map(|each| each["score"].as_f64().unwrap()).collect()
    };
    let best = of(&told, &url)["score"].as_f64().unwrap();
    assert!(scores(&told).iter().all(|score| *score >= best), "{told}");
    for candidate in told["candidates"].as_array().unwrap() {
        assert!(!candidate["reason"].as_str().unwrap().is_empty());
        assert_eq!(
            (&candidate["load"], &candidate["queued_tokens"]),
            (&json!(0), &json!(0))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_comes_of_it() {
    let rig = Rig::start([worker(), worker()]).await;
    let body = json!({"text": PROMPT, "rid": "mine"});
    for _ in 0..20 {
        explain(&rig, &body).await;
    }
    let told = explain(&rig, &body).await;
    assert!(
        told["candidates"]
            .as_array()
            .unwrap()
            .iter()
            .all(|each| each["cached_tokens"] == 0)
    );
    assert!(rig.engines.iter().all(|engine| engine.counts().requests == 0));
    // The id is free still.
    assert_eq!(rig.post("/generate", &body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn every_policy_and_both_forms_of_a_request_are_explained() {
    for policy in smg::config::Policy::all() {
        let rig = Rig::with_options([worker(), worker()], &json!({"policy": policy.name()})).await;
        for body in [chat("hi"), json!({"text": "hi"}), json!({"input_ids": [1, 2, 3]})] {
            let told = explain(&rig, &with(body, json!({"stream": true}))).await;
            assert_eq!(told["policy"], policy.name().as_str());
            let chosen = told["chosen"].as_str().unwrap();
            assert!(!of(&told, chosen)["score"].is_null(), "{told}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_routed_is_refused_as_the_request_itself() {
    let rig = Rig::start([worker()]).await;
    let rig = &rig;
    let wrong = |body: Value| async move { rig.post("/route/explain", &body).await };
    wrong(json!({"text": ["a", "b"]}))
        .await
        .assert_error(400, "invalid_value");
    wrong(json!({"text": "a", "model": "other"}))
        .await
        .assert_error(404, "model_not_found");
    wrong(json!({"messages": []}))
        .await
        .assert_error(400, "invalid_value");
    wrong(json!({})).await.assert_error(400, "missing_field");
}
