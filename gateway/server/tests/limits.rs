//! Who is let in: shares of tenants, classes, limits, and what refusals promise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Answer, Exchange, MODEL, Rig, card, chat, tokenizer, with, worker};
use futures::{FutureExt, StreamExt, future::join_all, stream::FuturesUnordered};
use http::Method;
use serde_json::{Value, json};
use smg_simulator::{Code, Outcome, Script, proto::scheduler::GetModelInfoResponse};
use tokio::time::Instant;

const CHAT: &str = "/v1/chat/completions";
const TENANT: &str = "x-smg-tenant-id";
const QUEUED: &str = "smg_admission_queue_depth{class=\"default\"}";

fn streamed() -> Value {
    with(chat("hi"), json!({"stream": true}))
}

/// Answers take a second for each token.
fn slow(text: &str) -> Script {
    Script {
        first_token_delay: Duration::from_secs(1),
        token_delay: Duration::from_secs(1),
        ..Script::fixed(tokenizer::ids(text))
    }
}

/// A gateway that takes one generation at a time and believes the header of tenants.
async fn one_at_a_time(options: Value) -> Rig {
    let common = json!({"max_concurrent_requests": 1, "trust_tenant_header": true});
    Rig::with_options([worker().script(slow("a"))], &with(common, options)).await
}

async fn open_as(rig: &Rig, tenant: &str, more: &[(&str, &str)], body: &Value) -> Exchange {
    let headers = [&[("content-type", "application/json"), (TENANT, tenant)], more].concat();
    rig.send(Method::POST, CHAT, &headers, Bytes::from(body.to_string()))
        .await
}

async fn post_as(rig: &Rig, tenant: &str, body: &Value) -> Answer {
    open_as(rig, tenant, &[], body).await.whole().await
}

/// The number of a series, 0 where it is not there yet.
async fn metric(rig: &Rig, series: &str) -> u64 {
    let metrics = rig.get("/metrics").await;
    let line = metrics
        .text()
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{series} ")));
    line.map_or(0, |number| number.parse().unwrap())
}

async fn waiting(rig: &Rig) -> u64 {
    metric(rig, QUEUED).await
}

async fn until_metric(rig: &Rig, series: &str, value: u64) {
    let reached = async {
        while metric(rig, series).await != value {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), reached)
        .await
        .unwrap();
}

#[track_caller]
fn retry_after(answer: &Answer) -> Duration {
    Duration::from_secs(answer.headers["retry-after"].to_str().unwrap().parse().unwrap())
}

// ---------------------------------------------------------------- shares

#[tokio::test(start_paused = true)]
async fn a_greedy_tenant_lets_a_modest_one_in_after_two_grants() {
    let rig = one_at_a_time(json!({"queue_size": 100})).await;
    let body = chat("hi");
    let mut greedy: FuturesUnordered<_> = (0..40).map(|_| post_as(&rig, "greedy", &body)).collect();
    let modest = async {
        until_metric(&rig, QUEUED, 39).await;
        let mut grants = Vec::new();
        for _ in 0..5 {
            let before = rig.engines[0].counts().requests;
            assert_eq!(post_as(&rig, "modest", &body).await.status, 200);
            // Its own is one of them.
            grants.push(rig.engines[0].counts().requests - before);
        }
        grants
    };
    tokio::pin!(modest);
    let mut num_served = 0;
    let grants = loop {
        tokio::select! {
            grants = &mut modest => break grants,
            Some(answer) = greedy.next() => {
                assert_eq!(answer.status, 200);
                num_served += 1;
            }
        }
    };
    assert!(grants.iter().all(|grants| *grants <= 3), "{grants:?}");
    // Nor does the modest one make the greedy one wait.
    assert!(num_served >= 4, "{num_served}");
    assert!(greedy.all(async |answer| answer.status == 200).await);
}

#[tokio::test(start_paused = true)]
async fn a_queue_full_of_one_tenant_makes_room_for_another() {
    let rig = one_at_a_time(json!({"queue_size": 4})).await;
    let body = chat("hi");
    let greedy = join_all((0..5).map(|_| post_as(&rig, "greedy", &body)));
    let modest = async {
        until_metric(&rig, QUEUED, 4).await;
        post_as(&rig, "modest", &body).await
    };
    let (greedy, modest) = tokio::join!(greedy, modest);
    assert_eq!(modest.status, 200);
    let refused: Vec<&Answer> = greedy.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(refused.len(), 1);
    let error = refused[0].assert_error(429, "rate_limit_exceeded");
    assert!(
        error["message"].as_str().unwrap().contains("--queue-size"),
        "{error}"
    );
    assert_eq!(
        metric(&rig, "smg_admission_refused_total{reason=\"displaced\"}").await,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_tenants_places_are_bounded_whoever_else_there_is() {
    let options = json!({
        "max_concurrent_requests": 10, "tenant_max_concurrent_requests": 2, "queue_size": 1,
    });
    let rig = one_at_a_time(options).await;
    let body = chat("hi");
    let before = Instant::now();
    let answers = join_all((0..4).map(|_| post_as(&rig, "greedy", &body)));
    let other = async {
        until_metric(&rig, QUEUED, 1).await;
        let answer = post_as(&rig, "modest", &body).await;
        (answer, before.elapsed().as_secs())
    };
    let (answers, (other, took)) = tokio::join!(answers, other);
    assert_eq!((other.status.as_u16(), took), (200, 1));
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(refused.len(), 1);
    refused[0].assert_error(429, "tenant_rate_limit_exceeded");
    assert_eq!(before.elapsed().as_secs(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_urgent_goes_before_what_can_wait() {
    let options = json!({
        "priority_scheduler_enabled": true, "priority_scheduler_default_max_class": "interactive", "queue_size": 10,
    });
    let rig = one_at_a_time(options).await;
    let ends = std::cell::RefCell::new(Vec::new());
    let body = chat("hi");
    let send = async |name: &'static str, place: u64, headers: &[(&str, &str)], body: Value| {
        tokio::time::sleep(Duration::from_millis(place)).await;
        let answer = open_as(&rig, "t", headers, &body).await.whole().await;
        assert_eq!(answer.status, 200);
        ends.borrow_mut().push(name);
    };
    let looks = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let depth =
            async |class| metric(&rig, &format!("smg_admission_queue_depth{{class=\"{class}\"}}")).await;
        assert_eq!(
            (
                depth("bulk").await,
                depth("default").await,
                depth("interactive").await
            ),
            (1, 1, 2)
        );
    };
    tokio::join!(
        send("first", 0, &[], body.clone()),
        send("bulk", 10, &[("x-smg-priority", "bulk")], body.clone()),
        send("default", 20, &[], body.clone()),
        // As urgent as it may be, which is as urgent as the next.
        send("system", 30, &[("x-smg-priority", "system")], body.clone()),
        send("number", 40, &[], with(body.clone(), json!({"priority": 7}))),
        looks,
    );
    assert_eq!(
        ends.into_inner(),
        ["first", "system", "number", "default", "bulk"]
    );
    let wrong = open_as(&rig, "t", &[("x-smg-priority", "top")], &body)
        .await
        .whole()
        .await;
    assert_eq!(
        wrong.assert_error(400, "invalid_value")["param"],
        "x-smg-priority"
    );
    assert_eq!(
        metric(&rig, "smg_admission_wait_seconds_count{class=\"bulk\"}").await,
        1
    );
}

// ---------------------------------------------------------------- permits

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_that_leave_take_nothing_with_them() {
    let options = json!({"max_concurrent_requests": 2, "queue_size": 1000});
    let hangs = Script::ending(Outcome::HangAfter { messages: 1 });
    let rig = Rig::with_options([worker().script(hangs)], &options).await;
    let body = streamed();
    let running = [rig.open(CHAT, &body).await, rig.open(CHAT, &body).await];
    let waiters: Vec<_> = (0..1000).map(|_| Box::pin(rig.post(CHAT, &body))).collect();
    let mut waiters = join_all(waiters);
    tokio::select! {
        _ = &mut waiters => panic!("nothing is free"),
        () = until_metric(&rig, QUEUED, 1000) => {}
    }
    drop(waiters);
    until_metric(&rig, QUEUED, 0).await;
    assert_eq!(metric(&rig, "smg_admission_inflight").await, 2);
    drop(running);
    until_metric(&rig, "smg_admission_inflight", 0).await;
    assert_eq!(rig.engines[0].counts().requests, 2);
    // Both permits are there.
    let again = [rig.open(CHAT, &body).await, rig.open(CHAT, &body).await];
    assert_eq!(metric(&rig, "smg_admission_inflight").await, 2);
    drop(again);
}

#[tokio::test(start_paused = true)]
async fn clients_that_leave_at_any_moment_leave_nothing_behind() {
    let options = json!({"max_concurrent_requests": 3, "queue_size": 50});
    let rig = Rig::with_options([worker().script(slow("abcd"))], &options).await;
    let body = streamed();
    // Before its turn, before the head, between tokens, never.
    let clients = (0..200_u64).map(async |number| {
        tokio::time::sleep(Duration::from_millis(number * 97)).await;
        let patience = Duration::from_millis(number * 7919 % 9000);
        tokio::time::timeout(patience, rig.post(CHAT, &body))
            .await
            .map(|answer| answer.status.as_u16())
    });
    let ends = join_all(clients).await;
    let count = |wanted| ends.iter().filter(|end| **end == wanted).count();
    assert!(count(Ok(200)) > 0 && ends.iter().any(Result::is_err));
    until_metric(&rig, "smg_admission_inflight", 0).await;
    assert_eq!(waiting(&rig).await, 0);
    assert_eq!(rig.get("/workers").await.body_json()["workers"][0]["load"], 0);
}

#[tokio::test(start_paused = true)]
async fn beyond_the_limit_refusals_come_at_once_and_the_rest_of_the_gateway_answers() {
    let options = json!({"max_concurrent_requests": 8, "queue_size": 8});
    let rig = Rig::with_options([worker().script(slow("abc"))], &options).await;
    let body = streamed();
    let before = Instant::now();
    let clients = join_all((0..1000).map(async |_| {
        let answer = rig.post(CHAT, &body).await;
        (answer, before.elapsed())
    }));
    let others = async {
        until_metric(&rig, QUEUED, 8).await;
        for path in ["/health", "/readiness", "/metrics", "/v1/models", "/workers"] {
            assert_eq!(rig.get(path).await.status, 200, "{path}");
        }
        assert_eq!(rig.post("/tokenize", &json!({"prompt": "hi"})).await.status, 200);
        assert_eq!(
            (metric(&rig, "smg_admission_inflight").await, waiting(&rig).await),
            (8, 8)
        );
        before.elapsed()
    };
    let (answers, others) = tokio::join!(clients, others);
    assert!(others < Duration::from_secs(1), "{others:?}");
    let (served, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|(answer, _)| answer.status == 200);
    assert_eq!((served.len(), refused.len()), (16, 984));
    for (answer, took) in refused {
        answer.assert_error(429, "rate_limit_exceeded");
        assert!(retry_after(answer) >= Duration::from_secs(1));
        assert!(*took < Duration::from_secs(1), "{took:?}");
    }
    assert_eq!(
        metric(&rig, "smg_admission_refused_total{reason=\"full\"}").await,
        984
    );
}

#[tokio::test(start_paused = true)]
async fn streams_hold_their_permits_until_they_end() {
    let rig = Rig::start([worker().script(slow("abc"))]).await;
    let body = streamed();
    let streams = join_all((0..10).map(|_| rig.open(CHAT, &body))).await;
    assert!(streams.iter().all(|stream| stream.status() == 200));
    assert_eq!(metric(&rig, "smg_admission_inflight").await, 10);
    for (left, stream) in (0..10).rev().zip(streams) {
        assert!(stream.whole().await.text().ends_with("data: [DONE]\n\n"));
        if left == 9 {
            assert!(metric(&rig, "smg_admission_inflight").await < 10);
        }
    }
    until_metric(&rig, "smg_admission_inflight", 0).await;
}

#[tokio::test(start_paused = true)]
async fn who_has_waited_in_vain_is_told_when_to_come_back() {
    let rig = one_at_a_time(json!({"queue_size": 1, "queue_timeout_secs": 5})).await;
    rig.engines[0].set_script(slow("abcdefghijkl"));
    let body = chat("hi");
    let before = Instant::now();
    let first = post_as(&rig, "t", &body);
    let second = async {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let refused = post_as(&rig, "t", &body).await;
        refused.assert_error(503, "queue_timeout");
        assert_eq!(before.elapsed().as_secs(), 5);
        // Nothing has ended yet, so that nobody knows how long it takes; it has run for 5 s.
        assert!((5..=6).contains(&retry_after(&refused).as_secs()));
    };
    tokio::join!(first, second);
    assert_eq!(
        metric(&rig, "smg_admission_refused_total{reason=\"timed_out\"}").await,
        1
    );
}

// ---------------------------------------------------------------- rates

/// Comes back when it was told to, and not a second before.
async fn assert_is_let_in_when_told(rig: &Rig, tenant: &str, body: &Value, refused: &Answer) {
    let wait = retry_after(refused);
    tokio::time::sleep(wait - Duration::from_millis(1001)).await;
    assert_eq!(post_as(rig, tenant, body).await.status, 429);
    tokio::time::sleep(Duration::from_millis(1001)).await;
    assert_eq!(post_as(rig, tenant, body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_tenants_requests_of_a_minute_are_counted() {
    let options = json!({"trust_tenant_header": true, "tenant_requests_per_minute": 3});
    let rig = Rig::with_options([worker()], &options).await;
    let body = chat("hi");
    for _ in 0..3 {
        assert_eq!(post_as(&rig, "a", &body).await.status, 200);
    }
    let refused = post_as(&rig, "a", &body).await;
    let error = refused.assert_error(429, "tenant_rate_limit_exceeded");
    assert_eq!(error["type"], "rate_limit_error");
    assert_eq!(retry_after(&refused).as_secs(), 20);
    assert_eq!(post_as(&rig, "b", &body).await.status, 200);
    assert_eq!(rig.post(CHAT, &body).await.status, 200);
    assert_is_let_in_when_told(&rig, "a", &body, &refused).await;
    assert_eq!(
        metric(&rig, "smg_admission_refused_total{reason=\"tenant_requests\"}").await,
        2
    );
}

#[tokio::test(start_paused = true)]
async fn a_tenants_tokens_of_a_minute_are_those_that_were_used() {
    let options = json!({"trust_tenant_header": true, "tenant_tokens_per_minute": 600});
    let rig = Rig::with_options([worker().script(Script::fixed(vec![97; 400]))], &options).await;
    for body in [chat("hi"), streamed()] {
        let tenant = if body["stream"] == true {
            "streamed"
        } else {
            "whole"
        };
        // Believed to be short, each takes 400 tokens and its prompt: the third finds a debt.
        for _ in 0..2 {
            assert_eq!(post_as(&rig, tenant, &body).await.status, 200);
        }
        let refused = post_as(&rig, tenant, &body).await;
        refused.assert_error(429, "tenant_rate_limit_exceeded");
        assert!(retry_after(&refused).as_secs() > 20, "{refused:?}");
        assert_is_let_in_when_told(&rig, tenant, &body, &refused).await;
    }
    // What a worker refuses costs nothing, however long it is.
    rig.engines[0].set_script(Script::refusing(Code::InvalidArgument, "no"));
    for _ in 0..10 {
        assert_eq!(post_as(&rig, "wrong", &chat(&"x".repeat(400))).await.status, 400);
    }
    assert_eq!(
        metric(&rig, "smg_admission_refused_total{reason=\"tenant_tokens\"}").await,
        4
    );
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_is_left_costs_what_was_sent() {
    let options = json!({"trust_tenant_header": true, "tenant_tokens_per_minute": 60});
    let script = Script {
        token_delay: Duration::from_millis(1),
        ..Script::fixed(vec![97; 400])
    };
    let rig = Rig::with_options([worker().script(script)], &options).await;
    let mut exchange = open_as(&rig, "a", &[], &streamed()).await;
    for _ in 0..100 {
        exchange.next_piece().await.unwrap();
    }
    drop(exchange);
    until_metric(&rig, "smg_admission_inflight", 0).await;
    let refused = post_as(&rig, "a", &chat("hi")).await;
    refused.assert_error(429, "tenant_rate_limit_exceeded");
    assert!(
        (40..200).contains(&retry_after(&refused).as_secs()),
        "{refused:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn vectors_cost_the_tokens_of_their_prompts() {
    let embeds = GetModelInfoResponse {
        is_generation: false,
        ..card(MODEL)
    };
    let options = json!({"trust_tenant_header": true, "tenant_tokens_per_minute": 300});
    let rig = Rig::with_options([worker().card(embeds)], &options).await;
    // A token for each letter, four times what a body of this length is believed to cost.
    let text = "x".repeat(400);
    for (path, body) in [
        ("/v1/embeddings", json!({"input": text})),
        ("/encode", json!({"text": text})),
    ] {
        let headers = [("content-type", "application/json"), (TENANT, path)];
        let send = async || {
            let body = Bytes::from(body.to_string());
            rig.send(Method::POST, path, &headers, body).await.whole().await
        };
        assert_eq!(send().await.status, 200);
        let refused = send().await;
        refused.assert_error(429, "tenant_rate_limit_exceeded");
        assert!((30..60).contains(&retry_after(&refused).as_secs()), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn all_clients_together_have_a_rate() {
    let options = json!({"max_concurrent_requests": 4, "rate_limit_tokens_per_second": 2});
    let rig = Rig::with_options([worker()], &options).await;
    let body = chat("hi");
    let answers = join_all((0..7).map(|_| rig.post(CHAT, &body))).await;
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status != 200).collect();
    assert_eq!(refused.len(), 3);
    let error = refused[0].assert_error(429, "rate_limit_exceeded");
    assert!(
        error["message"]
            .as_str()
            .unwrap()
            .contains("--rate-limit-tokens-per-second")
    );
    assert_eq!(retry_after(refused[0]).as_secs(), 1);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(rig.post(CHAT, &body).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn tenants_of_the_file_have_their_own_limits() {
    let path = std::env::temp_dir().join(format!("smg-{}-tenants.yaml", std::process::id()));
    // The digest of the key `secret`.
    let text = "default_policy: {requests_per_minute: 1}\n\
                tenants:\n\
                - {tenant_key: 'header:gold', requests_per_minute: 3}\n\
                - {tenant_key: 'auth:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b', \
                requests_per_minute: 2}\n\
                - {tenant_key: anonymous, requests_per_minute: 0}\n";
    std::fs::write(&path, text).unwrap();
    let options = json!({"trust_tenant_header": true, "tenant_rate_limit_config": path});
    let rig = Rig::with_options([worker()], &options).await;
    std::fs::remove_file(&path).unwrap();
    let served = async |headers: &[(&str, &str)]| {
        let headers = [&[("content-type", "application/json")], headers].concat();
        let body = Bytes::from(chat("hi").to_string());
        let sent = (0..5).map(|_| rig.send(Method::POST, CHAT, &headers, body.clone()));
        let answers = join_all(sent.map(|sent| sent.map(|exchange| exchange.status()))).await;
        answers.iter().filter(|status| **status == 200).count()
    };
    assert_eq!(served(&[(TENANT, "gold")]).await, 3);
    assert_eq!(served(&[("authorization", "Bearer secret")]).await, 2);
    assert_eq!(served(&[("authorization", "Bearer another")]).await, 1);
    assert_eq!(served(&[(TENANT, "silver")]).await, 1);
    assert_eq!(served(&[]).await, 5);
}
