//! A worker whose breaker is half-open: one request tries it, the others wait for the outcome.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{Answer, Rig, chat, tokenizer, with, worker};
use futures::future::join_all;
use serde_json::json;
use smg_simulator::{Code, Outcome, Script};
use tokio::time::Instant;

const CHAT: &str = "/v1/chat/completions";
/// Requests that open it.
const FAILURES: u64 = 3;
const OPEN: Duration = Duration::from_secs(60);

/// A gateway with one worker, whose breaker has been open for as long as it stays so.
async fn half_open() -> Rig {
    let options =
        json!({"cb_failure_threshold": FAILURES, "cb_success_threshold": 2, "disable_retries": true});
    let broken = worker().script(Script::refusing(Code::Internal, "broken"));
    let rig = Rig::with_options([broken], &options).await;
    for _ in 0..FAILURES {
        rig.post(CHAT, &chat("hi"))
            .await
            .assert_error(500, "worker_failed");
    }
    // Nobody would be served now.
    let unready = rig.get("/readiness").await;
    assert_eq!(unready.status, 503);
    assert_eq!(unready.body_json()["workers"][0]["circuit_breaker"], "open");
    tokio::time::sleep(OPEN).await;
    assert_eq!(circuit(&rig).await, "half_open");
    assert_eq!(rig.get("/readiness").await.status, 200);
    rig
}

async fn circuit(rig: &Rig) -> String {
    let view = rig.get("/workers").await.body_json();
    view["workers"][0]["circuit_breaker"].as_str().unwrap().to_owned()
}

async fn ask(rig: &Rig, num_requests: usize) -> Vec<Answer> {
    let body = chat("hi");
    join_all((0..num_requests).map(|_| rig.post(CHAT, &body))).await
}

/// Answers after a second.
fn slow() -> Script {
    Script {
        first_token_delay: Duration::from_secs(1),
        ..Script::fixed(tokenizer::ids("ok"))
    }
}

#[tokio::test(start_paused = true)]
async fn all_go_when_the_trials_are_answered() {
    let rig = half_open().await;
    rig.engines[0].set_script(slow());
    let before = Instant::now();
    let answers = ask(&rig, 50).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    // Two trials, one after the other, then everybody else at once.
    assert_eq!(before.elapsed().as_secs(), 3);
    assert_eq!(circuit(&rig).await, "closed");
}

#[tokio::test(start_paused = true)]
async fn all_are_refused_at_once_when_the_trial_fails() {
    let rig = half_open().await;
    rig.engines[0].set_script(Script {
        first_token_delay: Duration::from_secs(2),
        outcome: Outcome::FailAfter {
            messages: 1,
            code: Code::Internal,
            message: "still broken".to_owned(),
        },
        ..Script::fixed(tokenizer::ids("ok"))
    });
    let before = Instant::now();
    let answers = ask(&rig, 50).await;
    assert_eq!(before.elapsed().as_secs(), 2);
    let (tried, refused): (Vec<_>, Vec<_>) = answers.iter().partition(|answer| answer.status == 500);
    assert_eq!(tried.len(), 1);
    for answer in refused {
        answer.assert_error(503, "no_available_workers");
        assert_eq!(answer.headers["retry-after"], "61");
    }
    assert_eq!(rig.engines[0].counts().requests, FAILURES + 1);
}

/// Streams for a minute.
fn long() -> Script {
    Script {
        token_delay: Duration::from_secs(1),
        ..Script::fixed(vec![97; 60])
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_streams_for_long_has_succeeded_with_its_first_event() {
    for stream in [true, false] {
        let rig = half_open().await;
        rig.engines[0].set_script(long());
        let before = Instant::now();
        let body = with(chat("hi"), json!({"stream": stream}));
        let trial = async {
            let answer = rig.post(CHAT, &body).await;
            assert_eq!(answer.status, 200);
            assert_eq!(before.elapsed().as_secs(), 59);
        };
        let others = async {
            rig.engines[0]
                .wait_until(|record| record.counts.requests == FAILURES + 1)
                .await;
            rig.engines[0].set_script(slow());
            let answers = ask(&rig, 50).await;
            assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
            // The second trial takes one second, all others the next.
            assert_eq!(before.elapsed().as_secs(), 2);
            assert_eq!(circuit(&rig).await, "closed");
        };
        tokio::join!(trial, others);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_fails_after_its_first_event_opens_the_breaker_again() {
    let rig = half_open().await;
    // The first trial fails at its fifth token, after 4 seconds; the second says nothing.
    rig.engines[0].set_script(Script {
        outcome: Outcome::FailAfter {
            messages: 5,
            code: Code::Internal,
            message: "broken after all".to_owned(),
        },
        ..long()
    });
    let before = Instant::now();
    let body = chat("hi");
    let trial = async {
        rig.post(CHAT, &body).await.assert_error(500, "worker_failed");
        before.elapsed().as_secs()
    };
    let others = async {
        rig.engines[0]
            .wait_until(|record| record.counts.requests == FAILURES + 1)
            .await;
        rig.engines[0].set_script(Script::ending(Outcome::HangBeforeHeaders));
        let second = rig.post(CHAT, &body);
        let third = async {
            rig.engines[0]
                .wait_until(|record| record.counts.requests == FAILURES + 2)
                .await;
            rig.post(CHAT, &body).await
        };
        tokio::select! {
            _ = second => panic!("the second trial hangs"),
            third = third => third,
        }
    };
    let (failed_after, refused) = tokio::join!(trial, others);
    refused.assert_error(503, "no_available_workers");
    // Told at once, not after the limit of the wait.
    assert_eq!((failed_after, before.elapsed().as_secs()), (4, 4));
    assert_eq!(circuit(&rig).await, "open");
}

#[tokio::test(start_paused = true)]
async fn nobody_waits_long_for_a_trial_that_says_nothing() {
    let rig = half_open().await;
    rig.engines[0].set_script(Script::ending(Outcome::HangBeforeHeaders));
    let body = chat("hi");
    let trial = rig.post(CHAT, &body);
    tokio::pin!(trial);
    let others = async {
        rig.engines[0]
            .wait_until(|record| record.counts.requests == FAILURES + 1)
            .await;
        let before = Instant::now();
        let refused = ask(&rig, 20).await;
        (refused, before.elapsed().as_secs())
    };
    let (refused, waited) = tokio::select! {
        _ = &mut trial => panic!("the trial hangs"),
        others = others => others,
    };
    assert_eq!(waited, 10);
    for answer in &refused {
        answer.assert_error(503, "no_available_workers");
        let seconds: u64 = answer.headers["retry-after"].to_str().unwrap().parse().unwrap();
        assert!((50..=51).contains(&seconds), "{seconds}");
    }
    // Whoever comes later does not wait at all.
    let before = Instant::now();
    let late = tokio::select! {
        _ = &mut trial => panic!("the trial hangs"),
        late = rig.post(CHAT, &body) => late,
    };
    late.assert_error(503, "no_available_workers");
    assert!(before.elapsed() < Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_with_the_trial_makes_room_for_one_that_waits() {
    let rig = half_open().await;
    rig.engines[0].set_script(Script::ending(Outcome::HangBeforeHeaders));
    let body = chat("hi");
    let trial = rig.post(CHAT, &body);
    let leaves = async {
        tokio::select! {
            _ = trial => panic!("the trial hangs"),
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    };
    let waits = async {
        rig.engines[0]
            .wait_until(|record| record.counts.requests == FAILURES + 1)
            .await;
        rig.engines[0].set_script(Script::fixed(tokenizer::ids("ok")));
        rig.post(CHAT, &body).await
    };
    let before = Instant::now();
    let ((), answer) = tokio::join!(leaves, waits);
    assert_eq!((answer.status.as_u16(), before.elapsed().as_secs()), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn the_requests_own_deadline_ends_its_wait() {
    let options = json!({"cb_failure_threshold": 1, "disable_retries": true, "request_timeout_secs": 4});
    let broken = worker().script(Script::refusing(Code::Internal, "broken"));
    let rig = Rig::with_options([broken], &options).await;
    rig.post(CHAT, &chat("hi")).await;
    tokio::time::sleep(OPEN).await;
    rig.engines[0].set_script(Script::ending(Outcome::HangBeforeHeaders));
    let before = Instant::now();
    let answers = ask(&rig, 2).await;
    assert_eq!(before.elapsed().as_secs(), 4);
    let mut statuses = [0, 1].map(|i: usize| answers[i].status.as_u16());
    statuses.sort_unstable();
    assert_eq!(statuses, [503, 504]);
}

#[tokio::test(start_paused = true)]
async fn the_prompts_of_one_request_wait_for_each_other() {
    let rig = half_open().await;
    rig.engines[0].set_script(slow());
    for stream in [false, true] {
        let body = with(json!({"text": ["a", "b", "c"]}), json!({"stream": stream}));
        let answer = rig.post("/generate", &body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(!answer.text().contains("error"), "{answer:?}");
    }
    assert_eq!(rig.engines[0].counts().requests, FAILURES + 6);
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_are_counted() {
    let rig = half_open().await;
    rig.engines[0].set_script(slow());
    let before = Instant::now();
    let answers = ask(&rig, 300).await;
    let refused: Vec<_> = answers.iter().filter(|answer| answer.status == 503).collect();
    // One tries it, 256 wait.
    assert_eq!(refused.len(), 300 - 257);
    assert!(
        refused
            .iter()
            .all(|answer| answer.headers.contains_key("retry-after"))
    );
    assert_eq!(before.elapsed().as_secs(), 3);
}
