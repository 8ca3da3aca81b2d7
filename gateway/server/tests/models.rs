//! Workers of several models behind one gateway.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{MODEL, Rig, address_of, card, chat, with, worker};
use http::Method;
use serde_json::json;
use smg_simulator::{Outcome, Script};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(start_paused = true)]
async fn models_have_policies_and_aliases() {
    let other = || worker().card(card("other"));
    let options = json!({
        "policy": "least_load",
        "model_policies": ["other=round_robin"],
        "model_aliases": ["gpt=demo", "other=demo"],
    });
    let rig = Rig::with_options([worker(), other(), other()], &options).await;
    for model in [MODEL, "gpt", "other", "other"] {
        let answer = rig.post(CHAT, &with(chat("hi"), json!({"model": model}))).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let requests: Vec<u64> = rig
        .engines
        .iter()
        .map(|engine| engine.counts().requests)
        .collect();
    assert_eq!(requests, [2, 1, 1]);
    let chosen = rig.series("smg_worker_selection_total").await;
    assert_eq!(chosen.len(), 2, "{chosen:?}");
    for (model, policy) in [(MODEL, "least_load"), ("other", "round_robin")] {
        let labels = format!("model=\"{model}\",policy=\"{policy}\"}} 2");
        assert!(chosen.iter().any(|line| line.ends_with(&labels)), "{chosen:?}");
    }
    let list = rig.get("/v1/models").await.body_json();
    let names: Vec<&str> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|card| card["id"].as_str().unwrap())
        .collect();
    assert_eq!(names, [MODEL, "gpt", "other"]);
    assert_eq!(list["data"][1]["root"], MODEL);
    assert_eq!(rig.get("/v1/models/gpt").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_label_names_the_policy_of_the_workers_model() {
    let mut rig = Rig::with_options(
        [worker()],
        &json!({"policy": "least_load", "admin_api_key": "root"}),
    )
    .await;
    let joined = rig.join(worker().card(card("other")));
    let body = json!({"url": address_of(joined).to_string(), "labels": {"policy": "manual"}});
    let added = rig.administer(Method::POST, "/workers", &body).await;
    assert_eq!(added.status, 202, "{added:?}");
    rig.until_ready(2).await;
    let policy = async |model: &str| {
        let answer = rig
            .post("/route/explain", &with(chat("hi"), json!({"model": model})))
            .await;
        answer.body_json()["policy"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        (policy(MODEL).await.as_str(), policy("other").await.as_str()),
        ("least_load", "manual")
    );
    let body = json!({"labels": {"policy": "random"}});
    assert_eq!(
        rig.administer(Method::PATCH, "/workers/2", &body).await.status,
        202
    );
    assert_eq!(policy("other").await, "random");
}

/// B064 and B065: a request without a model goes anywhere, one for an unknown model is a 500.
#[tokio::test(start_paused = true)]
async fn b064_b065_a_missing_model_and_an_unknown_one_are_told() {
    let rig = Rig::with_options([worker(), worker().card(card("other"))], &json!({})).await;
    let mut without = chat("hi");
    without.as_object_mut().unwrap().remove("model");
    for (path, body) in [(CHAT, without), ("/generate", json!({"text": "hi"}))] {
        let error = rig.post(path, &body).await.assert_error(400, "missing_field");
        assert_eq!(error["param"], "model");
    }
    for name in ["no/such:model", &"x".repeat(300), "模型"] {
        let answer = rig.post(CHAT, &with(chat("hi"), json!({"model": name}))).await;
        answer.assert_error(404, "model_not_found");
    }
    assert!(rig.engines.iter().all(|engine| engine.counts().requests == 0));
}

/// B047: a model of which all workers are broken is said not to exist.
#[tokio::test(start_paused = true)]
async fn b047_a_model_whose_workers_are_broken_is_unavailable_and_an_unknown_one_not_found() {
    let broken = worker().script(Script::ending(Outcome::FailAfter {
        messages: 0,
        code: smg_simulator::Code::Internal,
        message: "broken".to_owned(),
    }));
    let options = json!({"cb_failure_threshold": 1, "disable_retries": true});
    let rig = Rig::with_options([broken, worker().card(card("other"))], &options).await;
    rig.post(CHAT, &chat("hi"))
        .await
        .assert_error(500, "worker_failed");
    let answer = rig.post(CHAT, &chat("hi")).await;
    answer.assert_error(503, "no_available_workers");
    assert!(answer.headers.contains_key("retry-after"));
    let unknown = rig
        .post(CHAT, &with(chat("hi"), json!({"model": "unknown"})))
        .await;
    unknown.assert_error(404, "model_not_found");
}
