//! Which worker requests go to, under every policy.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use bytes::Bytes;
use common::{Exchange, Rig, chat, tokenizer, with, worker};
use futures::{FutureExt, future::join_all};
use http::Method;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use smg::config::Policy;
use smg_simulator::{Code, Outcome, Script, SimulatedEngineBuilder};

const CHAT: &str = "/v1/chat/completions";

fn policies() -> impl Iterator<Item = String> {
    Policy::all().iter().map(|policy| policy.name())
}

/// A worker that answers after 3 seconds, its headers included.
fn slow() -> SimulatedEngineBuilder {
    worker().script(Script {
        first_token_delay: Duration::from_secs(3),
        ..Script::fixed(tokenizer::ids("ok"))
    })
}

/// A worker whose streams begin at once and do not end.
fn endless() -> SimulatedEngineBuilder {
    worker().script(Script::ending(Outcome::HangAfter { messages: 1 }))
}

fn counts(rig: &Rig) -> Vec<u64> {
    rig.engines
        .iter()
        .map(|engine| engine.counts().requests)
        .collect()
}

/// A stream that has begun.
async fn stream(rig: &Rig, text: &str) -> Exchange {
    let exchange = rig.open(CHAT, &with(chat(text), json!({"stream": true}))).await;
    assert_eq!(exchange.status(), 200);
    exchange
}

async fn loads(rig: &Rig) -> Vec<(u64, u64)> {
    let body = rig.get("/workers").await.body_json();
    let workers = body["workers"].as_array().unwrap();
    let load = |worker: &Value| {
        let number = |field: &str| worker[field].as_u64().unwrap();
        (number("load"), number("pending_tokens"))
    };
    workers.iter().map(load).collect()
}

async fn until_idle(rig: &Rig) {
    rig.until(|rig| rig.engines.iter().all(|engine| engine.num_running() == 0))
        .await;
    // The gateway sees the end of a call after the worker does.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let loads = loads(rig).await;
    assert!(loads.iter().all(|load| *load == (0, 0)), "{loads:?}");
}

async fn send(rig: &Rig, body: &Value, headers: &[(&str, &str)]) -> common::Answer {
    let headers = [&[("content-type", "application/json")], headers].concat();
    rig.send(Method::POST, CHAT, &headers, Bytes::from(body.to_string()))
        .await
        .whole()
        .await
}

/// Workers that served since `before`.
fn served_since(rig: &Rig, before: &[u64]) -> HashSet<usize> {
    let grew = counts(rig).into_iter().zip(before).enumerate();
    grew.filter(|(_, (now, before))| now > before)
        .map(|(worker, _)| worker)
        .collect()
}

/// Each policy of the product with whole and streamed answers, with and without keys: all are served, by workers that
/// are there, and no load is left.
#[tokio::test(start_paused = true)]
async fn every_policy_serves_every_kind_of_request() {
    for policy in policies() {
        let workers = [0, 1, 2].map(|_| worker().script(Script::fixed(tokenizer::ids("ok"))));
        let rig = Rig::with_options(workers, &json!({"policy": policy})).await;
        rig.kill(1).await;
        for turn in 0..12 {
            let body = with(
                chat(&format!("prompt {turn}")),
                json!({"stream": turn % 2 == 0, "routing_key": (turn % 3 == 0).then(|| format!("user-{turn}"))}),
            );
            let target = (turn % 4).to_string();
            let headers: &[(&str, &str)] = match turn % 4 {
                0 => &[],
                1 => &[("x-smg-routing-key", "somebody")],
                _ => &[("x-smg-target-worker", &target)],
            };
            let answer = send(&rig, &body, headers).await;
            assert_eq!(answer.status, 200, "{policy}: {answer:?}");
        }
        assert_eq!(counts(&rig)[1], 0, "{policy}");
        until_idle(&rig).await;
    }
}

/// B036: a miss goes to the worker with the smallest tree although its queue is full.
#[tokio::test(start_paused = true)]
async fn b036_unseen_prompts_go_to_the_idle_worker() {
    let rig = Rig::unready([endless(), endless()], &json!({"balance_abs_threshold": 30})).await;
    rig.kill(1).await;
    rig.until_ready(1).await;
    let mut streams = Vec::new();
    for number in 0..60 {
        streams.push(stream(&rig, &format!("{number}")).await);
    }
    assert_eq!(counts(&rig), [60, 0]);
    rig.revive(1);
    rig.until_ready(2).await;
    let system = "a long prompt of the system ".repeat(12);
    streams.push(stream(&rig, &system).await);
    assert_eq!(counts(&rig), [60, 1]);
    for number in 0..20 {
        streams.push(stream(&rig, &format!("unseen {number}")).await);
    }
    assert_eq!(counts(&rig), [60, 21]);
}

/// B038: load counts only after the headers of the answer, so during a slow prefill all workers look idle.
#[tokio::test(start_paused = true)]
async fn b038_load_counts_while_workers_hold_their_headers() {
    for (policy, most) in [("cache_aware", 17), ("power_of_two", 17), ("least_load", 16)] {
        let rig = Rig::with_options([slow(), slow()], &json!({"policy": policy})).await;
        let body = chat("the same words");
        let answers = join_all((0..30).map(|_| rig.post(CHAT, &body))).await;
        assert!(answers.iter().all(|answer| answer.status == 200));
        let counts = counts(&rig);
        assert!(counts.iter().all(|&count| count <= most), "{policy}: {counts:?}");
    }
}

/// B039: gRPC workers are counted no load, so the first takes all.
#[tokio::test(start_paused = true)]
async fn b039_equal_prompts_are_spread_over_grpc_workers() {
    for policy in policies() {
        let rig = Rig::with_options(
            [slow(), slow(), slow()],
            &json!({"policy": policy, "balance_abs_threshold": 5}),
        )
        .await;
        let body = chat("the same words");
        join_all((0..60).map(|_| rig.post(CHAT, &body))).await;
        let counts = counts(&rig);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        let bound = match policy.as_str() {
            // By chance: five standard deviations.
            "random" | "consistent_hashing" => 36,
            // 1.25 times the mean.
            "prefix_hash" => 25,
            // The balance thresholds: 1.5 times the least.
            "bucket" => 27,
            _ => 23,
        };
        assert!(*least > 0 && *most <= bound, "{policy}: {counts:?}");
    }
}

/// B043: each aborted request leaks one count of load.
#[tokio::test(start_paused = true)]
async fn b043_no_load_is_left_by_clients_that_leave() {
    let mut rng = StdRng::seed_from_u64(43);
    for policy in policies() {
        let rig = Rig::with_options(
            [worker(), worker(), worker()],
            &json!({"policy": policy, "retry_initial_backoff_ms": 1}),
        )
        .await;
        for engine in &rig.engines {
            let num_asked = AtomicUsize::new(0);
            engine.set_script_for(move |_| {
                let outcome = match num_asked.fetch_add(1, Ordering::Relaxed) % 7 {
                    0 => Outcome::Refuse {
                        code: Code::Unavailable,
                        message: "no".to_owned(),
                    },
                    3 => Outcome::FailAfter {
                        messages: 2,
                        code: Code::Internal,
                        message: "no".to_owned(),
                    },
                    _ => Outcome::Complete,
                };
                Script {
                    first_token_delay: Duration::from_millis(50),
                    token_delay: Duration::from_millis(20),
                    outcome,
                    ..Script::fixed(tokenizer::ids("abcdefgh"))
                }
            });
        }
        let requests = (0..200).map(|number| {
            let patience = Duration::from_millis(rng.random_range(0..250));
            let body = with(
                chat(&format!("prompt {}", number % 9)),
                json!({"stream": number % 2 == 0, "routing_key": format!("user-{}", number % 5)}),
            );
            let rig = &rig;
            async move { drop(tokio::time::timeout(patience, rig.post(CHAT, &body)).await) }
        });
        join_all(requests).await;
        until_idle(&rig).await;
    }
}

/// B044: the load of a streamed answer is released when its headers arrive.
#[tokio::test(start_paused = true)]
async fn b044_a_stream_is_load_until_it_ends() {
    let rig = Rig::start([endless()]).await;
    let mut streams = Vec::new();
    for number in 0..10 {
        streams.push(stream(&rig, &format!("{number}")).await);
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(loads(&rig).await[0].0, 10);
    let metrics = rig.get("/metrics").await;
    let gauge = metrics
        .text()
        .lines()
        .find(|line| line.starts_with("smg_worker_requests_active{"));
    assert!(gauge.is_some_and(|line| line.ends_with(" 10")), "{gauge:?}");
    streams.clear();
    until_idle(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn requests_of_one_routing_key_meet_whether_field_or_header_says_it() {
    for policy in ["consistent_hashing", "manual"] {
        let workers = [0, 1, 2, 3].map(|_| worker().script(Script::fixed(tokenizer::ids("ok"))));
        let rig = Rig::with_options(workers, &json!({"policy": policy})).await;
        let mut used = HashSet::new();
        for user in 0..20 {
            let before = counts(&rig);
            let key = format!("user-{user}");
            for turn in 0..4 {
                let body = chat(&format!("prompt {user} {turn}"));
                let answer = match turn % 2 {
                    0 => send(&rig, &with(body, json!({"routing_key": key})), &[]).await,
                    _ => send(&rig, &body, &[("x-smg-routing-key", &key)]).await,
                };
                assert_eq!(answer.status, 200);
            }
            let served = served_since(&rig, &before);
            assert_eq!(served.len(), 1, "{policy}");
            used.extend(served);
        }
        assert_eq!(used.len(), 4, "{policy}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_can_name_its_worker_under_consistent_hashing() {
    let workers = [0, 1, 2].map(|_| worker().script(Script::fixed(tokenizer::ids("ok"))));
    let rig = Rig::with_options(workers, &json!({"policy": "consistent_hashing"})).await;
    for target in ["2", "0", "1", "2"] {
        let before = counts(&rig);
        send(&rig, &chat("hi"), &[("x-smg-target-worker", target)]).await;
        let place: usize = target.parse().unwrap();
        assert_eq!(served_since(&rig, &before), HashSet::from([place]));
    }
    // No such worker: any serves it.
    assert_eq!(
        send(&rig, &chat("hi"), &[("x-smg-target-worker", "9")])
            .await
            .status,
        200
    );
    let error = send(&rig, &chat("hi"), &[("x-smg-target-worker", "first")])
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["param"], "x-smg-target-worker");
}

/// Whoever hides one key of many users behind an address or an API key gets many workers all the same.
#[tokio::test(start_paused = true)]
async fn what_is_no_routing_key_ties_no_request() {
    let workers = [0, 1, 2].map(|_| worker().script(Script::fixed(tokenizer::ids("ok"))));
    let rig = Rig::with_options(workers, &json!({"policy": "consistent_hashing"})).await;
    let headers = [
        ("authorization", "Bearer one"),
        ("x-forwarded-for", "10.0.0.1"),
        ("cookie", "session=1"),
    ];
    for _ in 0..40 {
        send(&rig, &chat("hi"), &headers).await;
    }
    assert!(counts(&rig).iter().all(|&count| count > 0));
}

#[tokio::test(start_paused = true)]
async fn prefix_hash_goes_by_the_tokens_that_its_option_counts() {
    let workers = || [0, 1, 2, 3].map(|_| worker().script(Script::fixed(tokenizer::ids("ok"))));
    let opening = "one and the same opening of all of these prompts, and then";
    let num_used = |count: usize| async move {
        let options = json!({"policy": "prefix_hash", "prefix_token_count": count});
        let rig = Rig::with_options(workers(), &options).await;
        for number in 0..30 {
            let body = json!({"model": common::MODEL, "prompt": format!("{opening} {number}")});
            assert_eq!(rig.post("/v1/completions", &body).await.status, 200);
        }
        counts(&rig).iter().filter(|count| **count > 0).count()
    };
    assert_eq!(num_used(20).await, 1);
    assert_eq!(num_used(400).await, 4);
}

#[tokio::test(start_paused = true)]
async fn buckets_part_short_prompts_from_long_ones() {
    let rig = Rig::with_options([worker(), worker()], &json!({"policy": "bucket"})).await;
    let of_length =
        |length: usize| json!({"model": common::MODEL, "prompt": "x".repeat(length), "max_tokens": 1});
    // Ten short prompts have as many tokens as one long one.
    for _ in 0..3 {
        for length in [40; 10].into_iter().chain([400]).cycle().take(33) {
            rig.post("/v1/completions", &of_length(length)).await;
        }
        tokio::time::sleep(Duration::from_secs(6)).await;
    }
    let mut shares = Vec::new();
    for length in [40, 400] {
        let before = counts(&rig)[0];
        for _ in 0..20 {
            rig.post("/v1/completions", &of_length(length)).await;
        }
        shares.push(counts(&rig)[0] - before);
    }
    // The limit falls beside the tokens that tell one length from the other.
    let is_parted = shares.iter().all(|share| *share <= 4 || *share >= 16);
    assert!(is_parted && shares[0].abs_diff(shares[1]) >= 12, "{shares:?}");
}

/// A worker whose prompts take three times as long gets the fewer requests the longer it is known.
#[tokio::test(start_paused = true)]
async fn a_slow_worker_is_measured_and_gets_less() {
    let answering_after = |millis| {
        worker().script(Script {
            first_token_delay: Duration::from_millis(millis),
            ..Script::fixed(tokenizer::ids("ok"))
        })
    };
    let rig = Rig::with_options(
        [answering_after(300), answering_after(60)],
        &json!({"policy": "least_load"}),
    )
    .await;
    for round in 0..20 {
        let prompts = (0..6).map(|number| {
            let body = chat(&format!(
                "{round} {number} {}",
                "words that no worker has seen before ".repeat(5)
            ));
            let rig = &rig;
            async move { rig.post(CHAT, &body).await.status }.map(|status| assert_eq!(status, 200))
        });
        join_all(prompts).await;
    }
    let counts = counts(&rig);
    assert!(counts[1] > counts[0] * 3 / 2, "{counts:?}");
}
