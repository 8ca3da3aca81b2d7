//! What clients see of workers that refuse, break, stall or die, and what the gateway does about it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{Rig, chat, tokenizer, with, worker};
use serde_json::{Value, json};
use smg_simulator::{Code, Outcome, Script, SimulatedEngineBuilder};

const CHAT: &str = "/v1/chat/completions";

fn refusing(code: Code) -> SimulatedEngineBuilder {
    worker().script(Script::refusing(code, "the worker's own words"))
}

fn failing_after(messages: usize, code: Code) -> SimulatedEngineBuilder {
    let outcome = Outcome::FailAfter {
        messages,
        code,
        message: "broken".to_owned(),
    };
    worker().script(Script {
        outcome,
        ..Script::fixed(tokenizer::ids("abcdef"))
    })
}

/// The error event of a stream, which must be its last one and follow no made-up reason.
fn stream_error(events: &[Value]) -> &Value {
    let (last, before) = events.split_last().unwrap();
    assert!(
        before
            .iter()
            .all(|event| event["choices"][0]["finish_reason"].is_null()),
        "{before:?}"
    );
    &last["error"]
}

#[tokio::test(start_paused = true)]
async fn each_status_of_a_worker_has_its_http_status() {
    let table = [
        (Code::InvalidArgument, 400, 1),
        (Code::FailedPrecondition, 400, 1),
        (Code::OutOfRange, 400, 1),
        (Code::Unauthenticated, 401, 1),
        (Code::PermissionDenied, 403, 1),
        (Code::NotFound, 404, 1),
        (Code::AlreadyExists, 409, 1),
        (Code::Aborted, 409, 1),
        // A full worker is not asked again.
        (Code::ResourceExhausted, 503, 1),
        (Code::Internal, 500, 1),
        (Code::Unknown, 500, 3),
        (Code::DataLoss, 500, 3),
        (Code::Unimplemented, 501, 1),
        (Code::Cancelled, 502, 3),
        (Code::Unavailable, 503, 3),
        (Code::DeadlineExceeded, 504, 1),
    ];
    for (code, status, attempts) in table {
        let rig = Rig::with_options([refusing(code)], &json!({"retry_max_retries": 3})).await;
        for body in [chat("hi"), with(chat("hi"), json!({"stream": true}))] {
            let answer = rig.post(CHAT, &body).await;
            assert_eq!(answer.status.as_u16(), status, "{code:?}");
            assert!(answer.text().contains("the worker's own words"), "{code:?}");
            assert_eq!(
                answer.headers.contains_key("retry-after"),
                status == 503,
                "{code:?}"
            );
        }
        assert_eq!(rig.engines[0].counts().requests, 2 * attempts, "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_goes_to_another_worker() {
    let rig = Rig::with_options(
        [
            refusing(Code::Unavailable),
            worker().script(Script::fixed(tokenizer::ids("ok"))),
        ],
        &json!({"policy": "round_robin"}),
    )
    .await;
    for _ in 0..4 {
        let answer = rig.post(CHAT, &chat("hi")).await;
        assert_eq!(answer.body_json()["choices"][0]["message"]["content"], "ok");
    }
    // Each request that met the first worker met it once.
    assert!(rig.engines[0].counts().requests <= 4);
    assert_eq!(rig.engines[1].counts().requests, 4);
}

#[tokio::test(start_paused = true)]
async fn a_full_worker_sends_the_request_to_another_one() {
    let rig = Rig::with_options(
        [
            refusing(Code::ResourceExhausted),
            worker().script(Script::fixed(tokenizer::ids("ok"))),
        ],
        &json!({"policy": "round_robin"}),
    )
    .await;
    for _ in 0..2 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    assert!(rig.engines[0].counts().requests >= 1);
    assert_eq!(rig.engines[1].counts().requests, 2);
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_mid_stream_is_an_event_and_not_repeated() {
    let rig = Rig::start([failing_after(3, Code::Internal)]).await;
    let answer = rig.post(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
    assert_eq!(answer.status, 200);
    let events = answer.events();
    assert_eq!(stream_error(&events)["message"], "broken");
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "abc");
    // The same without streaming is a plain error.
    rig.post(CHAT, &chat("hi"))
        .await
        .assert_error(500, "worker_failed");
    assert_eq!(rig.engines[0].counts().requests, 2);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_just_ends_is_an_error() {
    for messages in [0, 2] {
        let outcome = Outcome::EndAfter { messages };
        let script = Script {
            outcome,
            ..Script::fixed(tokenizer::ids("abc"))
        };
        let rig = Rig::start([worker().script(script)]).await;
        let answer = rig.post(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
        if messages == 0 {
            answer.assert_error(500, "worker_failed");
        } else {
            assert_eq!(stream_error(&answer.events())["code"], "worker_failed");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_worker_gives_an_error_event_and_the_next_request_another_worker() {
    let hangs = || {
        let script = Script {
            outcome: Outcome::HangAfter { messages: 2 },
            ..Script::fixed(tokenizer::ids("abc"))
        };
        worker().script(script)
    };
    let rig = Rig::with_options([hangs(), hangs()], &json!({"policy": "round_robin"})).await;
    let mut exchange = rig.open(CHAT, &with(chat("hi"), json!({"stream": true}))).await;
    assert_eq!(exchange.status(), 200);
    while !exchange.next_piece().await.unwrap().contains("\"b\"") {}
    let victim = usize::from(rig.engines[0].num_running() == 0);
    let other = 1 - victim;
    rig.kill(victim).await;
    let rest = exchange.whole().await;
    let events = rest.events();
    assert_eq!(stream_error(&events)["code"], "worker_failed");

    rig.engines[other].set_script(Script::fixed(tokenizer::ids("ok")));
    for _ in 0..2 {
        let answer = rig.post(CHAT, &chat("hi")).await;
        assert_eq!(answer.body_json()["choices"][0]["message"]["content"], "ok");
    }
}

#[tokio::test(start_paused = true)]
async fn silence_ends_in_a_timeout_and_frees_the_worker() {
    for messages in [0, 1] {
        let script = Script {
            outcome: Outcome::HangAfter { messages },
            ..Script::fixed(tokenizer::ids("abc"))
        };
        let rig = Rig::with_options(
            [worker().script(script)],
            &json!({"stream_stall_timeout_secs": 7}),
        )
        .await;
        let before = tokio::time::Instant::now();
        rig.post(CHAT, &chat("hi"))
            .await
            .assert_error(504, "worker_stalled");
        assert_eq!(before.elapsed().as_secs(), 7);
        rig.engines[0]
            .wait_until(|record| record.counts.cancelled == 1)
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_of_a_request_is_bounded_and_told_to_the_worker() {
    let script = Script {
        token_delay: Duration::from_secs(1),
        ..Script::fixed(vec![97; 100])
    };
    let rig = Rig::with_options([worker().script(script)], &json!({"request_timeout_secs": 5})).await;
    rig.post(CHAT, &chat("hi")).await.assert_error(504, "timeout");
    assert!(
        rig.engines[0].record().requests[0]
            .metadata("grpc-timeout")
            .is_some()
    );
}

#[tokio::test(start_paused = true)]
async fn errors_of_clients_never_open_the_breaker_and_those_of_workers_do() {
    let options = json!({"cb_failure_threshold": 3, "disable_retries": true});
    let rig = Rig::with_options([refusing(Code::InvalidArgument)], &options).await;
    for _ in 0..10 {
        rig.post(CHAT, &chat("hi"))
            .await
            .assert_error(400, "invalid_value");
    }
    rig.engines[0].set_script(Script::refusing(Code::Internal, "broken"));
    for _ in 0..5 {
        rig.post(CHAT, &chat("hi")).await;
    }
    assert_eq!(rig.engines[0].counts().requests, 13);
    // A known model whose workers are all out is unavailable, not unknown.
    let error = rig.post(CHAT, &chat("hi")).await;
    error.assert_error(503, "no_available_workers");
    assert!(error.headers.contains_key("retry-after"));
    let unknown = with(chat("hi"), json!({"model": "no/such:model"}));
    rig.post(CHAT, &unknown)
        .await
        .assert_error(404, "model_not_found");
}

#[tokio::test(start_paused = true)]
async fn full_and_draining_workers_do_not_trip_their_breakers() {
    let options = json!({"cb_failure_threshold": 3, "disable_retries": true});
    let rig = Rig::with_options([worker()], &options).await;
    for (code, word) in [
        (Code::ResourceExhausted, "worker_overloaded"),
        (Code::Unavailable, "worker_unavailable"),
    ] {
        rig.engines[0].set_script(Script::refusing(code, "not now"));
        for _ in 0..10 {
            let refused = rig.post(CHAT, &chat("hi")).await;
            refused.assert_error(503, word);
            assert!(refused.headers.contains_key("retry-after"));
        }
    }
    // In mid-stream it says as little.
    rig.engines[0].set_script(Script {
        outcome: Outcome::FailAfter {
            messages: 1,
            code: Code::Unavailable,
            message: "draining".to_owned(),
        },
        ..Script::fixed(tokenizer::ids("abc"))
    });
    for _ in 0..5 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 503);
    }
    assert_eq!(rig.engines[0].counts().requests, 25);
    let view = rig.get("/workers").await.body_json()["workers"][0].clone();
    assert_eq!(view["circuit_breaker"], "closed");
    rig.engines[0].set_script(Script::fixed(tokenizer::ids("ok")));
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn load_is_zero_after_every_kind_of_end() {
    let rig = Rig::start([worker(), worker()]).await;
    let outcomes = [
        Outcome::Complete,
        Outcome::Refuse {
            code: Code::InvalidArgument,
            message: "no".to_owned(),
        },
        Outcome::Refuse {
            code: Code::Unavailable,
            message: "no".to_owned(),
        },
        Outcome::FailAfter {
            messages: 1,
            code: Code::Internal,
            message: "no".to_owned(),
        },
        Outcome::EndAfter { messages: 1 },
        Outcome::HangAfter { messages: 1 },
        Outcome::HangBeforeHeaders,
    ];
    for outcome in outcomes {
        for engine in &rig.engines {
            engine.set_script(Script {
                outcome: outcome.clone(),
                ..Script::fixed(tokenizer::ids("abc"))
            });
        }
        for body in [chat("hi"), with(chat("hi"), json!({"stream": true}))] {
            let patience = tokio::time::timeout(Duration::from_secs(30), rig.post(CHAT, &body));
            // Requests that hang are left by their client.
            drop(patience.await);
        }
    }
    rig.until(|rig| rig.engines.iter().all(|engine| engine.num_running() == 0))
        .await;
    let workers = rig.get("/workers").await.body_json();
    for worker in workers["workers"].as_array().unwrap() {
        assert_eq!(
            (&worker["load"], &worker["pending_tokens"]),
            (&json!(0), &json!(0)),
            "{worker}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn load_counts_from_selection_on() {
    let hangs = || worker().script(Script::ending(Outcome::HangBeforeHeaders));
    for policy in ["cache_aware", "power_of_two", "round_robin"] {
        let rig = Rig::with_options(
            [hangs(), hangs()],
            &json!({"policy": policy, "balance_abs_threshold": 2}),
        )
        .await;
        let body = chat("the same words");
        let requests: Vec<_> = (0..30).map(|_| rig.post(CHAT, &body)).collect();
        let all = futures::future::join_all(requests);
        let arrived = rig.until(|rig| {
            rig.engines
                .iter()
                .map(|engine| engine.counts().requests)
                .sum::<u64>()
                == 30
        });
        tokio::select! {
            _ = all => panic!("nothing answers"),
            () = arrived => {}
        }
        let counts = [0, 1].map(|worker| rig.engines[worker].counts().requests);
        assert!(
            counts.iter().all(|count| (10..=20).contains(count)),
            "{policy}: {counts:?}"
        );
    }
}
