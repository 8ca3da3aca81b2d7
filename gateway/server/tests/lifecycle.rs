//! Start, readiness, restart of workers, drain.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{MODEL, Rig, card, chat, tokenizer, with, worker};
use serde_json::json;
use smg_simulator::{Code, HealthScript, Outcome, Script, proto::scheduler::GetModelInfoResponse};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(start_paused = true)]
async fn without_workers_the_gateway_is_alive_and_not_ready() {
    let rig = Rig::unready([], &json!({})).await;
    assert_eq!(rig.get("/health").await.status, 200);
    assert_eq!(rig.get("/liveness").await.status, 200);
    let readiness = rig.get("/readiness").await;
    assert_eq!(readiness.status, 503);
    assert_eq!(readiness.body_json()["status"], "not ready");
    rig.get("/health_generate")
        .await
        .assert_error(503, "no_available_workers");
    rig.post(CHAT, &chat("hi"))
        .await
        .assert_error(503, "no_available_workers");
}

#[tokio::test(start_paused = true)]
async fn a_loading_worker_is_not_ready_and_shows_its_progress() {
    for health in [
        HealthScript::NotReady("weights 40 %".into()),
        HealthScript::Unhealthy("weights 40 %".into()),
    ] {
        let rig = Rig::unready([worker().health(health)], &json!({})).await;
        rig.engines[0]
            .wait_until(|record| record.counts.health_probes >= 2)
            .await;
        assert_eq!(rig.get("/readiness").await.status, 503);
        let view = rig.get("/workers").await.body_json()["workers"][0].clone();
        assert_eq!(
            (&view["status"], &view["message"]),
            (&json!("loading"), &json!("weights 40 %"))
        );
        assert_eq!(view["is_healthy"], false);
        let refused = rig.post(CHAT, &chat("hi")).await;
        refused.assert_error(503, "no_available_workers");
        assert!(refused.headers.contains_key("retry-after"));
        rig.engines[0].set_health(HealthScript::Ready);
        rig.until_ready(1).await;
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
}

#[tokio::test(start_paused = true)]
async fn readiness_counts_the_workers_that_serve() {
    let rig = Rig::start([worker(), worker()]).await;
    let ready = rig.get("/readiness").await.body_json();
    assert_eq!(
        ready,
        json!({"status": "ready", "healthy_workers": 2, "total_workers": 2})
    );
    rig.kill(0).await;
    rig.until_ready(1).await;
    rig.kill(1).await;
    rig.until(|_| true).await;
    let gone = async {
        while rig.get("/readiness").await.status != 503 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    // The model is known, its workers are away.
    rig.post(CHAT, &chat("hi"))
        .await
        .assert_error(503, "no_available_workers");
}

/// Never probed for hours: only what breaks can tell.
fn rarely_probed() -> serde_json::Value {
    json!({"health_check_interval_secs": 36_000, "disable_retries": true})
}

async fn assert_turns_at_once(rig: &Rig) {
    let before = tokio::time::Instant::now();
    while rig.get("/readiness").await.status != 503 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(
        before.elapsed() < Duration::from_millis(300),
        "{:?}",
        before.elapsed()
    );
    let view = rig.get("/workers").await.body_json()["workers"][0].clone();
    assert_eq!(
        (&view["status"], &view["is_healthy"]),
        (&json!("unhealthy"), &json!(false))
    );
}

#[tokio::test(start_paused = true)]
async fn readiness_turns_when_an_idle_worker_dies() {
    let rig = Rig::with_options([worker()], &rarely_probed()).await;
    rig.kill(0).await;
    assert_turns_at_once(&rig).await;
    rig.revive(0);
    tokio::time::timeout(Duration::from_secs(10), rig.until_ready(1))
        .await
        .unwrap();
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn readiness_turns_when_a_stream_breaks() {
    let script = Script {
        outcome: Outcome::HangAfter { messages: 1 },
        ..Script::fixed(tokenizer::ids("abc"))
    };
    let rig = Rig::with_options([worker().script(script)], &rarely_probed()).await;
    let mut exchange = rig.open(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
    while !exchange.next_piece().await.unwrap().contains("\"a\"") {}
    rig.kill(0).await;
    assert!(exchange.whole().await.text().contains("worker_failed"));
    assert_turns_at_once(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_costs_a_living_worker_one_probe() {
    let rig = Rig::with_options([worker()], &rarely_probed()).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let before = rig.engines[0].counts().health_probes;
    rig.engines[0].drop_connections();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.engines[0].counts().health_probes, before + 1);
    assert_eq!(rig.get("/readiness").await.status, 200);
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn one_slow_probe_does_not_take_a_worker_out() {
    let rig = Rig::start([worker()]).await;
    rig.engines[0].set_health(HealthScript::Silent);
    let before = rig.engines[0].counts().health_probes;
    rig.until(|rig| rig.engines[0].counts().health_probes == before + 2)
        .await;
    rig.engines[0].set_health(HealthScript::Ready);
    assert_eq!(rig.get("/readiness").await.status, 200);
    rig.until(|rig| rig.engines[0].counts().health_probes == before + 5)
        .await;
    assert_eq!(rig.get("/readiness").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_worker_is_asked_again_what_it_serves() {
    let rig = Rig::start([worker()]).await;
    rig.kill(0).await;
    rig.until_ready(0).await;
    rig.engines[0].set_card(card("other"));
    rig.restart(0);
    rig.until_ready(1).await;
    let models = rig.get("/v1/models").await.body_json();
    assert_eq!(models["data"][0]["id"], "other");
    assert_eq!(
        rig.post(CHAT, &with(chat("hi"), json!({"model": "other"})))
            .await
            .status,
        200
    );
    rig.post(CHAT, &chat("hi"))
        .await
        .assert_error(404, "model_not_found");
}

#[tokio::test(start_paused = true)]
async fn a_restarted_worker_is_not_blamed_for_what_the_old_process_did() {
    let options =
        json!({"cb_failure_threshold": 2, "cb_timeout_duration_secs": 3600, "disable_retries": true});
    let rig = Rig::with_options([worker()], &options).await;
    rig.kill(0).await;
    for _ in 0..3 {
        assert_ne!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    rig.until_ready(0).await;
    rig.restart(0);
    rig.until_ready(1).await;
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

/// The worker is another process with another model while GetServerInfo is under way, which is no reason for the
/// gateway to stop reading.
async fn restart_amid_reading(rig: &Rig, num_reads: u64, model: &str) {
    let read = rig.engines[0].wait_until(|record| record.counts.server_info == num_reads);
    tokio::time::timeout(Duration::from_secs(30), read).await.unwrap();
    assert_eq!(rig.engines[0].counts().model_info, num_reads);
    rig.engines[0].set_card(card(model));
    rig.engines[0].drop_connections();
}

async fn until_model(rig: &Rig, model: &str) {
    let told = async {
        while rig.get("/v1/models").await.body_json()["data"][0]["id"] != model {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), told).await.unwrap();
}

/// A tokenizer's folder that is gone when the test ends.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("smg-{}-{name}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        for (file, content) in tokenizer::files() {
            std::fs::write(folder.join(file), content).unwrap();
        }
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_restarts_while_it_is_read_is_read_again() {
    // With a tokenizer of the gateway's own, nothing that is asked for after the restart fails.
    let folder = Folder::new("read-again");
    let options = with(rarely_probed(), json!({"tokenizer_path": folder.0}));
    let rig = Rig::unready([worker()], &options).await;
    rig.engines[0].set_server_info_delay(Duration::from_secs(1));
    restart_amid_reading(&rig, 1, "second").await;
    rig.until_ready(1).await;
    // Not for a moment with what the first process told.
    assert_eq!(rig.get("/v1/models").await.body_json()["data"][0]["id"], "second");
    // The same while it is in service and was doubted already.
    let num_reads = rig.engines[0].counts().server_info;
    rig.engines[0].drop_connections();
    restart_amid_reading(&rig, num_reads + 1, "third").await;
    until_model(&rig, "third").await;
    rig.until_ready(1).await;
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_restarts_between_two_probes_is_read_again() {
    let rig = Rig::with_options([worker()], &rarely_probed()).await;
    rig.engines[0].set_card(card("other"));
    rig.engines[0].drop_connections();
    until_model(&rig, "other").await;
}

/// Prompt tokens that the gateway believed to be cached on workers, of all requests so far.
async fn predicted(rig: &Rig) -> u64 {
    let metrics = rig.get("/metrics").await;
    let value = metrics
        .text()
        .lines()
        .find(|line| line.starts_with("smg_cache_predicted_tokens_total{"))
        .and_then(|line| line.rsplit_once(' '));
    value.unwrap().1.parse().unwrap()
}

/// Whether the gateway believes that the worker holds a prompt that it was sent before.
async fn is_remembered(rig: &Rig) -> bool {
    let before = predicted(rig).await;
    assert_eq!(rig.post(CHAT, &chat(LONG)).await.status, 200);
    predicted(rig).await > before
}

/// More than a page of tokens.
const LONG: &str = "these words are more than a page of tokens, which is what workers are remembered for";

async fn with_a_prompt_sent(worker: smg_simulator::SimulatedEngineBuilder) -> Rig {
    let rig = Rig::start([worker]).await;
    assert_eq!(rig.post(CHAT, &chat(LONG)).await.status, 200);
    assert!(is_remembered(&rig).await);
    rig
}

async fn out_of_service(rig: &Rig) {
    tokio::time::timeout(Duration::from_secs(120), rig.until_ready(0))
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_was_out_of_service_has_kept_its_cache() {
    let reasons = [
        HealthScript::NotReady("the scheduler says nothing".to_owned()),
        HealthScript::Unhealthy("broken".to_owned()),
        HealthScript::Silent,
    ];
    // Whether an engine tells its start or not: the connection holds.
    for plays in [worker as fn() -> _, untold] {
        for reason in reasons.clone() {
            let rig = with_a_prompt_sent(plays()).await;
            rig.engines[0].set_health(reason);
            out_of_service(&rig).await;
            rig.engines[0].set_health(HealthScript::Ready);
            rig.until_ready(1).await;
            assert!(is_remembered(&rig).await);
        }
    }
}

/// Does not tell when it started.
fn untold() -> smg_simulator::SimulatedEngineBuilder {
    smg_simulator::SimulatedEngine::builder()
        .card(card(MODEL))
        .tokenizer_files(&tokenizer::files())
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_cut_off_has_kept_its_cache_and_another_one_has_none() {
    for restarts in [false, true] {
        let rig = with_a_prompt_sent(worker()).await;
        rig.kill(0).await;
        out_of_service(&rig).await;
        if restarts {
            rig.restart(0);
        } else {
            rig.revive(0);
        }
        rig.until_ready(1).await;
        assert_eq!(is_remembered(&rig).await, !restarts);
    }
}

#[tokio::test(start_paused = true)]
async fn where_an_engine_does_not_tell_its_start_a_broken_connection_stands_for_a_restart() {
    let rig = with_a_prompt_sent(untold()).await;
    rig.kill(0).await;
    out_of_service(&rig).await;
    rig.revive(0);
    rig.until_ready(1).await;
    assert!(!is_remembered(&rig).await);
}

#[tokio::test(start_paused = true)]
async fn health_generate_really_generates() {
    let rig = Rig::start([worker()]).await;
    assert_eq!(rig.get("/health_generate").await.status, 200);
    assert!(
        rig.engines[0].record().requests[0]
            .message
            .request_id
            .starts_with("HEALTH_CHECK")
    );
    rig.engines[0].set_script(Script::ending(Outcome::HangBeforeHeaders));
    rig.get("/health_generate")
        .await
        .assert_error(503, "health_generate_failed");
    // Probes and traffic agree on one thing only: the worker answers.
    assert_eq!(rig.get("/readiness").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn health_generate_embeds_on_a_worker_that_only_embeds() {
    let card = GetModelInfoResponse {
        is_generation: false,
        ..card(MODEL)
    };
    let rig = Rig::start([worker().card(card)]).await;
    assert_eq!(rig.get("/health_generate").await.status, 200);
    assert_eq!(rig.engines[0].counts().embeds, 1);
    rig.engines[0].set_script(Script::refusing(Code::Internal, "no memory"));
    rig.get("/health_generate")
        .await
        .assert_error(503, "health_generate_failed");
}

#[tokio::test(start_paused = true)]
async fn probes_that_come_together_share_one_generation() {
    let script = Script {
        first_token_delay: Duration::from_secs(2),
        ..Script::fixed(tokenizer::ids("a"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    let probes = (0..50).map(|_| rig.get("/health_generate"));
    let answers = futures::future::join_all(probes).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(rig.engines[0].counts().requests, 1);
    // The next one is a probe of its own, and one whose client left is not joined.
    let left = tokio::time::timeout(Duration::from_secs(1), rig.get("/health_generate"));
    assert!(left.await.is_err());
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1)
        .await;
    assert_eq!(rig.get("/health_generate").await.status, 200);
    assert_eq!(rig.engines[0].counts().requests, 3);
}

#[tokio::test(start_paused = true)]
async fn a_drain_finishes_what_runs_and_refuses_what_is_new() {
    let script = Script {
        token_delay: Duration::from_secs(1),
        ..Script::fixed(tokenizer::ids("slowly"))
    };
    let mut rig = Rig::start([worker().script(script)]).await;
    let mut exchange = rig.open(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
    exchange.next_piece().await.unwrap();
    rig.shutdown.drain.cancel();
    rig.until(|rig| rig.shutdown.drain.is_cancelled()).await;
    let readiness = rig.get("/readiness").await;
    assert_eq!(
        (readiness.status.as_u16(), &readiness.body_json()["reason"]),
        (503, &json!("shutting down"))
    );
    assert_eq!(rig.get("/health").await.status, 200);
    let refused = rig.post(CHAT, &chat("hi")).await;
    refused.assert_error(503, "shutting_down");
    assert!(refused.headers.contains_key("retry-after"));
    let events = exchange.whole().await.events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "stop");
    rig.ended().await.unwrap();
    assert!(rig.tasks.is_empty());
    assert_eq!(rig.engines[0].counts().cancelled, 0);
}

#[tokio::test(start_paused = true)]
async fn the_grace_period_ends_what_still_runs() {
    let script = Script::ending(Outcome::HangAfter { messages: 1 });
    let options = json!({"shutdown_grace_period_secs": 30});
    let mut rig = Rig::with_options([worker().script(script)], &options).await;
    let mut exchange = rig.open(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
    exchange.next_piece().await.unwrap();
    let before = tokio::time::Instant::now();
    rig.shutdown.drain.cancel();
    let events = exchange.whole().await.events();
    assert_eq!(events.last().unwrap()["error"]["code"], "shutting_down");
    rig.ended().await.unwrap();
    assert!((30..=33).contains(&before.elapsed().as_secs()));
    // The worker was told before the gateway ended.
    let counts = rig.engines[0].counts();
    assert_eq!((counts.cancelled, counts.aborts), (1, 1));
    assert!(rig.tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_second_signal_ends_at_once() {
    let script = Script::ending(Outcome::HangAfter { messages: 1 });
    let mut rig = Rig::with_options([worker().script(script)], &json!({})).await;
    let mut exchange = rig.open(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
    exchange.next_piece().await.unwrap();
    rig.shutdown.drain.cancel();
    rig.get("/liveness").await;
    let before = tokio::time::Instant::now();
    rig.shutdown.now.cancel();
    rig.ended().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn an_idle_gateway_drains_at_once() {
    let mut rig = Rig::start([worker()]).await;
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    let before = tokio::time::Instant::now();
    rig.shutdown.drain.cancel();
    rig.ended().await.unwrap();
    assert!(before.elapsed() < Duration::from_secs(1));
    assert!(rig.tasks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_a_tokenizer_is_not_used_and_says_why() {
    let plain = smg_simulator::SimulatedEngine::builder().card(card(MODEL));
    let rig = Rig::unready([plain], &json!({})).await;
    rig.engines[0]
        .wait_until(|record| record.counts.tokenizer >= 1)
        .await;
    rig.until(|rig| rig.engines[0].counts().health_probes >= 3).await;
    let view = rig.get("/workers").await.body_json()["workers"][0].clone();
    assert_eq!(view["is_healthy"], false);
    assert!(
        view["message"].as_str().unwrap().contains("--tokenizer-path"),
        "{view}"
    );
}
