//! What keeps workers that are unwell from harming others: the budget for retries, and probes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{MODEL, Rig, card, chat, tokenizer, worker};
use serde_json::{Value, json};
use smg_simulator::{
    Code, HealthScript, Outcome, Script, SimulatedEngineBuilder,
    proto::scheduler::{GetModelInfoResponse, SchedulerLoad},
};
use tokio::time::Instant;

const CHAT: &str = "/v1/chat/completions";

fn refusing(code: Code) -> Script {
    Script::refusing(code, "not now")
}

fn says_ok() -> Script {
    Script::fixed(tokenizer::ids("ok"))
}

async fn metric(rig: &Rig, name: &str) -> f64 {
    let text = rig.get("/metrics").await;
    let line = text.text().lines().find(|line| line.starts_with(name));
    line.map_or(0.0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
}

fn total(rig: &Rig, count: impl Fn(&smg_simulator::Counts) -> u64) -> u64 {
    rig.engines.iter().map(|engine| count(&engine.counts())).sum()
}

// ---------------------------------------------------------------- the budget for retries

#[tokio::test(start_paused = true)]
async fn retries_are_at_most_a_share_of_the_requests() {
    let options = json!({
        "retry_budget_ratio": 0.2, "retry_budget_min_per_second": 0, "retry_initial_backoff_ms": 1,
        "disable_circuit_breaker": true,
    });
    let workers = || worker().script(refusing(Code::Unknown));
    let rig = Rig::with_options([workers(), workers(), workers()], &options).await;
    for _ in 0..50 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 500);
    }
    assert_eq!(total(&rig, |counts| counts.requests), 60);
    assert_eq!(metric(&rig, "smg_worker_retries_total").await, 10.0);
    assert_eq!(metric(&rig, "smg_worker_retries_over_budget_total").await, 50.0);
}

#[tokio::test(start_paused = true)]
async fn attempts_that_reached_nobody_cost_no_budget() {
    let options = json!({
        "retry_budget_ratio": 0, "retry_budget_min_per_second": 0, "policy": "round_robin",
        "retry_initial_backoff_ms": 1,
    });
    let rig = Rig::with_options([worker().script(says_ok()), worker().script(says_ok())], &options).await;
    rig.kill(0).await;
    for _ in 0..4 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    assert!(metric(&rig, "smg_worker_retries_total").await >= 1.0);
    assert_eq!(rig.engines[1].counts().requests, 4);
}

// ---------------------------------------------------------------- probes

#[tokio::test(start_paused = true)]
async fn a_worker_that_refuses_is_probed_at_once() {
    let options = json!({"health_check_interval_secs": 36_000, "policy": "round_robin"});
    let rig = Rig::with_options([worker(), worker().script(says_ok())], &options).await;
    rig.engines[0].set_health(HealthScript::NotReady("draining".to_owned()));
    rig.engines[0].set_script(refusing(Code::Unavailable));
    let before = Instant::now();
    for _ in 0..2 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    rig.until_ready(1).await;
    assert!(
        before.elapsed() < Duration::from_secs(1),
        "{:?}",
        before.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_answers_requests_is_hardly_probed() {
    let options = json!({"health_check_interval_secs": 10, "health_check_jitter_factor": 0});
    let rig = Rig::with_options([worker().script(says_ok())], &options).await;
    let probes = || rig.engines[0].counts().health_probes;
    let before = probes();
    for _ in 0..20 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
        tokio::time::sleep(Duration::from_millis(2900)).await;
    }
    assert_eq!(probes(), before);
    // Its own word counts as well, now and then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(probes(), before + 1);
    // Without requests each interval has its probe.
    tokio::time::sleep(Duration::from_secs(50)).await;
    assert!(
        (before + 5..=before + 6).contains(&probes()),
        "{} {before}",
        probes()
    );
}

#[tokio::test(start_paused = true)]
async fn a_fleet_is_not_probed_in_lock_step() {
    let options = json!({"health_check_interval_secs": 10, "health_check_jitter_factor": 0.5});
    let rig = Rig::with_options((0..8).map(|_| worker()), &options).await;
    let (mut seen, mut moments) = (total(&rig, |counts| counts.health_probes), 0);
    let start = seen;
    for _ in 0..6000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let now = total(&rig, |counts| counts.health_probes);
        moments += u64::from(now > seen);
        seen = now;
    }
    // Within a minute 48 without jitter, and 96 at the most.
    assert!((48..=96).contains(&(seen - start)), "{}", seen - start);
    // All at once, that were 6 moments.
    assert!(moments > 40, "{moments}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_probe_now_and_then_leaves_a_worker_in_service() {
    let options = json!({"health_check_interval_secs": 1, "health_check_timeout_secs": 2});
    let rig = Rig::with_options([worker().script(says_ok())], &options).await;
    for _ in 0..5 {
        rig.engines[0].set_health(HealthScript::Slow(Duration::from_secs(3)));
        let asked = rig.engines[0].counts().health_probes;
        rig.engines[0]
            .wait_until(|record| record.counts.health_probes > asked)
            .await;
        rig.engines[0].set_health(HealthScript::Ready);
        rig.engines[0]
            .wait_until(|record| record.counts.health_probes > asked + 3)
            .await;
        assert_eq!(rig.get("/readiness").await.status, 200);
    }
    // As many in a row as the limit says take it out.
    rig.engines[0].set_health(HealthScript::Slow(Duration::from_secs(3)));
    tokio::time::timeout(Duration::from_secs(20), rig.until_ready(0))
        .await
        .unwrap();
}

// ---------------------------------------------------------------- the probe that generates

fn proving() -> Value {
    json!({"health_check_generate": true, "health_check_timeout_secs": 2})
}

async fn message(rig: &Rig) -> String {
    let view = rig.get("/workers").await.body_json();
    view["workers"][0]["message"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_cannot_generate_gets_no_requests() {
    let broken = [
        (Script::ending(Outcome::HangBeforeHeaders), "no answer within 2 s"),
        (refusing(Code::Internal), "not now"),
        (
            Script::ending(Outcome::AbortAfter {
                messages: 0,
                status: 500,
                message: "out of memory".to_owned(),
            }),
            "out of memory",
        ),
    ];
    for (script, words) in broken {
        let builder = worker().script(script).without_engine_service();
        let rig = Rig::unready([builder], &proving()).await;
        rig.engines[0]
            .wait_until(|record| record.counts.requests == 3)
            .await;
        assert_eq!(rig.get("/readiness").await.status, 503);
        let told = message(&rig).await;
        assert!(
            told.contains("generation probe failed") && told.contains(words) || told == "generating a token",
            "{told}"
        );
        rig.engines[0].set_script(says_ok());
        rig.until_ready(1).await;
        assert_eq!(message(&rig).await, "ready");
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn the_probe_costs_one_token_and_comes_once() {
    let rig = Rig::with_options([worker().script(says_ok())], &proving()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let record = rig.engines[0].record();
    assert_eq!(record.requests.len(), 1);
    let sampling = record.requests[0].message.sampling_params.as_ref().unwrap();
    assert_eq!(sampling.max_new_tokens, Some(1));
    assert_eq!((record.counts.ended, record.counts.cancelled), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_returns_is_asked_again() {
    let rig = Rig::with_options([worker().script(says_ok())], &proving()).await;
    rig.kill(0).await;
    rig.until_ready(0).await;
    rig.engines[0].set_script(refusing(Code::Internal));
    rig.restart(0);
    let asked = rig.engines[0].counts().requests;
    rig.engines[0]
        .wait_until(|record| record.counts.requests >= asked + 3)
        .await;
    assert_eq!(rig.get("/readiness").await.status, 503);
    rig.engines[0].set_script(says_ok());
    rig.until_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_full_or_busy_needs_no_proof() {
    let full = worker().script(refusing(Code::ResourceExhausted));
    let full = Rig::unready([full], &proving()).await;
    tokio::time::timeout(Duration::from_secs(20), full.until_ready(1))
        .await
        .unwrap();

    let busy = Rig::unready(
        [worker().script(Script::ending(Outcome::HangBeforeHeaders))],
        &proving(),
    )
    .await;
    busy.engines[0].set_load(SchedulerLoad {
        num_running_reqs: 4,
        num_total_reqs: 4,
        ..SchedulerLoad::default()
    });
    tokio::time::timeout(Duration::from_secs(20), busy.until_ready(1))
        .await
        .unwrap();
}

fn embedding_worker() -> SimulatedEngineBuilder {
    worker().card(GetModelInfoResponse {
        is_generation: false,
        ..card(MODEL)
    })
}

#[tokio::test(start_paused = true)]
async fn a_worker_for_embeddings_embeds() {
    let rig = Rig::with_options([embedding_worker()], &proving()).await;
    let counts = rig.engines[0].counts();
    assert_eq!((counts.requests, counts.embeds), (1, 1));
    let broken = embedding_worker().script(refusing(Code::Internal));
    let rig = Rig::unready([broken], &proving()).await;
    rig.engines[0]
        .wait_until(|record| record.counts.embeds == 3)
        .await;
    assert_eq!(rig.get("/readiness").await.status, 503);
}
