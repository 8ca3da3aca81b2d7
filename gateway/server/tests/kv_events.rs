//! Workers that tell what they cache: the gateway's view follows theirs through evictions, losses and restarts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{Rig, worker};
use serde_json::{Value, json};
use smg_simulator::SimulatedEngineBuilder;

const PAGE: usize = 4;

/// Room for 16 pages of 4 tokens, which are bytes of the prompt.
fn telling() -> SimulatedEngineBuilder {
    worker().cache(PAGE, 16)
}

async fn generate(rig: &Rig, text: &str) -> Value {
    let answer = rig.post("/generate", &json!({"text": text})).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.body_json()
}

/// Prompts of 32 tokens that share nothing.
fn other(number: usize) -> String {
    format!("{number:04}").repeat(8)
}

async fn series(rig: &Rig, name: &str) -> u64 {
    let text = rig.get("/metrics").await;
    let of_name = text
        .text()
        .lines()
        .filter(|line| line.starts_with(&format!("{name}{{")) || line.starts_with(&format!("{name} ")));
    of_name
        .map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64)
        .sum()
}

async fn prediction_error(rig: &Rig) -> u64 {
    series(rig, "smg_cache_prediction_error_tokens_total").await
}

/// Asks for these prompts; what their worker finds cached of each is what the gateway said.
async fn assert_foretold(rig: &Rig, numbers: &[usize]) {
    let before = prediction_error(rig).await;
    for number in numbers {
        generate(rig, &other(*number)).await;
    }
    assert_eq!(prediction_error(rig).await, before);
}

/// What `GET /workers` says of a worker's reports.
async fn feed(rig: &Rig, worker: usize) -> Value {
    rig.get("/workers").await.body_json()["workers"][worker]["kv_events"].clone()
}

/// Virtual time passes until the gateway follows the worker without a hole.
async fn until_exact(rig: &Rig, worker: usize) {
    for _ in 0..10_000 {
        if feed(rig, worker).await["is_exact"] == json!(true) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("never exact: {}", feed(rig, worker).await);
}

#[tokio::test(start_paused = true)]
async fn predictions_equal_what_the_worker_finds_evictions_included() {
    let rig = Rig::start([telling()]).await;
    until_exact(&rig, 0).await;
    let mut cached = Vec::new();
    for number in [1, 2, 1, 3, 1, 2] {
        cached.push(generate(&rig, &other(number)).await["meta_info"]["cached_tokens"].clone());
    }
    // Three prompts of 8 pages do not fit: the end of 2 was pushed out.
    assert_eq!(cached[..5], [0, 0, 28, 0, 28].map(|tokens| json!(tokens)));
    assert!(cached[5].as_u64().unwrap() < 28, "{cached:?}");
    let (predicted, reported) = (
        series(&rig, "smg_cache_predicted_tokens_total").await,
        series(&rig, "smg_cache_reported_tokens_total").await,
    );
    assert_eq!(predicted, reported);
    assert_eq!(prediction_error(&rig).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_goes_where_it_is_cached_now() {
    let rig = Rig::start([telling(), telling()]).await;
    for worker in 0..2 {
        until_exact(&rig, worker).await;
    }
    // Whoever got it holds it, and gets it again and again.
    generate(&rig, &other(1)).await;
    let holder = rig.only_asked();
    for _ in 0..5 {
        generate(&rig, &other(1)).await;
    }
    assert_eq!(rig.engines[holder].counts().requests, 6);
    // Its cache is lost without the gateway's doing; what was sent there no longer counts.
    rig.engines[holder].clear_cache();
    assert_foretold(&rig, &[1]).await;
}

#[tokio::test(start_paused = true)]
async fn lost_batches_are_asked_for_again() {
    let rig = Rig::start([telling()]).await;
    until_exact(&rig, 0).await;
    generate(&rig, &other(1)).await;
    rig.engines[0].lose_kv_events(2);
    for number in [2, 3, 4] {
        generate(&rig, &other(number)).await;
    }
    until_exact(&rig, 0).await;
    let told = feed(&rig, 0).await;
    assert_eq!(
        (&told["gaps"], &told["repairs"]),
        (&json!(1), &json!(1)),
        "{told}"
    );
    assert_eq!(told["snapshots"], 1, "the replay sufficed: {told}");
    assert_eq!(rig.engines[0].counts().kv_subscriptions, 2);
    assert_foretold(&rig, &[4, 3, 2, 1]).await;
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_replayed_comes_as_a_snapshot() {
    let rig = Rig::start([telling()]).await;
    until_exact(&rig, 0).await;
    rig.engines[0].lose_kv_events(1);
    generate(&rig, &other(1)).await;
    rig.engines[0].forget_kv_history();
    generate(&rig, &other(2)).await;
    until_exact(&rig, 0).await;
    let told = feed(&rig, 0).await;
    assert_eq!(told["snapshots"], 2, "{told}");
    assert_foretold(&rig, &[1, 2]).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_ends_is_opened_again_where_it_stood() {
    let rig = Rig::start([telling()]).await;
    until_exact(&rig, 0).await;
    generate(&rig, &other(1)).await;
    rig.engines[0].end_kv_streams();
    rig.until(|rig| rig.engines[0].counts().kv_subscriptions == 2)
        .await;
    generate(&rig, &other(2)).await;
    until_exact(&rig, 0).await;
    assert_foretold(&rig, &[1, 2]).await;
    assert_eq!(feed(&rig, 0).await["snapshots"], 1);
}

#[tokio::test(start_paused = true)]
async fn another_process_begins_with_an_empty_cache() {
    let rig = Rig::start([telling()]).await;
    until_exact(&rig, 0).await;
    for number in [1, 2] {
        generate(&rig, &other(number)).await;
    }
    rig.kill(0).await;
    rig.engines[0].restart_cache();
    rig.restart(0);
    rig.until_ready(1).await;
    until_exact(&rig, 0).await;
    assert_foretold(&rig, &[1, 1, 2]).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_events_is_asked_once_and_believed_to_hold_what_it_was_sent() {
    let rig = Rig::start([worker(), worker()]).await;
    generate(&rig, &other(1)).await;
    let holder = rig.only_asked();
    for _ in 0..5 {
        generate(&rig, &other(1)).await;
    }
    assert_eq!(rig.engines[holder].counts().requests, 6);
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    for worker in 0..2 {
        assert_eq!(rig.engines[worker].counts().kv_subscriptions, 1);
        assert_eq!(feed(&rig, worker).await, Value::Null);
    }
}

#[tokio::test(start_paused = true)]
async fn namespaces_are_those_of_the_engine() {
    let rig = Rig::start([telling()]).await;
    until_exact(&rig, 0).await;
    for extra in [
        json!({}),
        json!({"cache_salt": "b"}),
        json!({"extra_key": "a", "cache_salt": "b"}),
        json!({"extra_key": "ab"}),
        json!({"extra_key": ""}),
    ] {
        let mut body = json!({"text": "one prompt of some namespaces"});
        body.as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        for _ in 0..2 {
            assert_eq!(rig.post("/generate", &body).await.status, 200);
        }
    }
    assert_eq!(prediction_error(&rig).await, 0);
}
