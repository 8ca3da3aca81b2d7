//! Adapters: named in requests, listed beside the models, loaded and unloaded on all workers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{MODEL, Rig, chat, with, worker};
use serde_json::{Value, json};
use smg_simulator::SimulatedEngineBuilder;

/// Tells of one adapter, `a`, and loads everything but `/broken`.
fn adapted() -> SimulatedEngineBuilder {
    worker().control(|name, args| match name {
        "lora_adapters" => Ok(json!({"loaded_adapters": {"a": "/p"}})),
        "load_lora_adapter" if args["lora_path"] == "/broken" => {
            Ok(json!({"success": false, "error_message": "it is broken", "loaded_adapters": {"a": "/p"}}))
        }
        "load_lora_adapter" | "unload_lora_adapter" => {
            Ok(json!({"success": true, "error_message": null, "loaded_adapters": {"a": "/p", "b": "/q"}}))
        }
        other => Err(format!("{other} is no operation")),
    })
}

/// Which adapters the worker was asked for, request by request.
fn asked(rig: &Rig) -> Vec<String> {
    let record = rig.engines[0].record();
    record
        .requests
        .iter()
        .map(|request| request.message.lora_id.clone())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn each_prompt_names_its_adapter() {
    let rig = Rig::start([adapted()]).await;
    let body = json!({"text": ["x", "y", "z"], "lora_path": ["a", null, ""]});
    rig.post("/generate", &body).await.body_json();
    let mut names = asked(&rig);
    names.sort();
    assert_eq!(names, ["", "", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_name_may_carry_an_adapter() {
    let rig = Rig::start([adapted()]).await;
    for model in [&format!("{MODEL}:unknown"), "a", MODEL] {
        let body = with(chat("x"), json!({"model": model}));
        let answer = rig.post("/v1/chat/completions", &body).await.body_json();
        assert_eq!(answer["model"], MODEL);
    }
    let both = with(
        chat("x"),
        json!({"model": format!("{MODEL}:unknown"), "lora_path": "a"}),
    );
    rig.post("/v1/chat/completions", &both).await.body_json();
    // The worker knows which adapters there are; it refuses the others.
    assert_eq!(asked(&rig), ["unknown", "a", "", "a"]);
    for model in ["b", "nothing:a"] {
        let body = with(chat("x"), json!({"model": model}));
        rig.post("/v1/chat/completions", &body)
            .await
            .assert_error(404, "model_not_found");
    }
}

#[tokio::test(start_paused = true)]
async fn adapters_are_listed_with_their_model() {
    let rig = Rig::start([adapted(), adapted()]).await;
    let list = rig.get("/v1/models").await.body_json();
    let [base, adapter] = list["data"].as_array().unwrap().as_slice() else {
        panic!("a model and an adapter: {list}")
    };
    assert_eq!((&base["id"], &base["parent"]), (&json!(MODEL), &Value::Null));
    assert_eq!(
        (&adapter["id"], &adapter["root"], &adapter["parent"]),
        (&json!("a"), &json!("/p"), &json!(MODEL))
    );
    assert_eq!(rig.get("/v1/models/a").await.body_json()["parent"], MODEL);
}

#[tokio::test(start_paused = true)]
async fn all_workers_load_and_unload() {
    let rig = Rig::start([adapted(), adapted()]).await;
    let body = json!({"lora_name": "b", "lora_path": "/q", "pinned": true});
    let reply = rig.post("/load_lora_adapter", &body).await.body_json();
    let done = json!({"success": true, "error_message": null, "loaded_adapters": {"a": "/p", "b": "/q"}});
    assert_eq!(reply, done);
    let reply = rig
        .post("/unload_lora_adapter", &json!({"lora_name": "b"}))
        .await
        .body_json();
    assert_eq!(reply, done);
    for engine in &rig.engines {
        let operations = engine.record().operations.clone();
        let changes: Vec<_> = operations
            .into_iter()
            .filter(|(name, _)| name.ends_with("_lora_adapter"))
            .collect();
        let load = ("load_lora_adapter".to_owned(), body.clone());
        let unload = ("unload_lora_adapter".to_owned(), json!({"lora_name": "b"}));
        assert_eq!(changes, [load, unload]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_adapter_is_a_bad_request() {
    let rig = Rig::start([adapted()]).await;
    let body = json!({"lora_name": "b", "lora_path": "/broken"});
    let reply = rig.post("/load_lora_adapter", &body).await;
    assert_eq!(reply.status, 400);
    assert_eq!(
        reply.body_json(),
        json!({"success": false, "error_message": "it is broken", "loaded_adapters": {"a": "/p"}})
    );
    rig.post("/load_lora_adapter", &json!({"lora_name": "b"}))
        .await
        .assert_error(400, "missing_field");
}
