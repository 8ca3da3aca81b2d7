//! Clients that leave: in every phase the worker is told at once, by the end of the rpc and by an abort.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{Rig, chat, tokenizer, with, worker};
use serde_json::{Value, json};
use smg_simulator::{Outcome, Record, Script};
use tokio::io::AsyncWriteExt;

const CHAT: &str = "/v1/chat/completions";

/// A worker that is deaf to aborts: only the end of the rpc frees it.
async fn rig(outcome: Outcome) -> Rig {
    let script = Script {
        outcome,
        heeds_aborts: false,
        ..Script::fixed(tokenizer::ids("abc"))
    };
    Rig::start([worker().script(script)]).await
}

fn streamed() -> Value {
    with(chat("hi"), json!({"stream": true}))
}

/// Sends a request that gets no answer, and leaves once the worker's record satisfies a condition.
async fn leave_when(rig: &Rig, body: &Value, holds: impl FnMut(&Record) -> bool) {
    tokio::select! {
        answer = rig.post(CHAT, body) => panic!("expected silence, got {answer:?}"),
        () = rig.engines[0].wait_until(holds) => {}
    }
}

async fn assert_gone(rig: &Rig) {
    let left = tokio::time::Instant::now();
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1 && record.counts.aborts == 1)
        .await;
    assert!(left.elapsed() < Duration::from_millis(100));
    assert_eq!(rig.engines[0].num_running(), 0);
    let record = rig.engines[0].record();
    assert_eq!(record.aborts[0].request_id, record.requests[0].message.request_id);
    let workers = rig.get("/workers").await.body_json();
    assert_eq!(workers["workers"][0]["load"], 0);
}

#[tokio::test(start_paused = true)]
async fn while_queued_in_the_worker_streamed() {
    let rig = rig(Outcome::HangBeforeHeaders).await;
    leave_when(&rig, &streamed(), |record| record.counts.requests == 1).await;
    assert_gone(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn while_queued_in_the_worker_unstreamed() {
    let rig = rig(Outcome::HangBeforeHeaders).await;
    leave_when(&rig, &chat("hi"), |record| record.counts.requests == 1).await;
    assert_gone(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn during_prefill() {
    for body in [streamed(), chat("hi")] {
        let rig = rig(Outcome::HangAfter { messages: 0 }).await;
        leave_when(&rig, &body, |record| record.counts.requests == 1).await;
        assert_gone(&rig).await;
    }
}

#[tokio::test(start_paused = true)]
async fn in_mid_stream() {
    let rig = rig(Outcome::HangAfter { messages: 2 }).await;
    let mut exchange = rig.open(CHAT, &streamed()).await;
    while !exchange.next_piece().await.unwrap().contains("\"b\"") {}
    drop(exchange);
    assert_gone(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn during_decode_unstreamed() {
    let rig = rig(Outcome::HangAfter { messages: 2 }).await;
    leave_when(&rig, &chat("hi"), |record| record.counts.requests == 1).await;
    assert_gone(&rig).await;
}

/// From here a client that closed its socket and one that closed its sending side only look the same.
#[tokio::test(start_paused = true)]
async fn by_closing_the_sending_side_only() {
    let rig = rig(Outcome::HangAfter { messages: 0 }).await;
    let mut half = rig.raw().await;
    let body = chat("hi").to_string();
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    half.write_all((head + &body).as_bytes()).await.unwrap();
    rig.engines[0]
        .wait_until(|record| record.counts.requests == 1)
        .await;
    half.shutdown().await.unwrap();
    assert_gone(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn while_waiting_for_a_place() {
    let script = Script::ending(Outcome::HangBeforeHeaders);
    let options = json!({"max_concurrent_requests": 1, "queue_size": 1});
    let rig = Rig::with_options([worker().script(script)], &options).await;
    let (runs, waits) = (chat("runs"), chat("waits"));
    let running = rig.post(CHAT, &runs);
    tokio::pin!(running);
    tokio::select! {
        _ = &mut running => panic!("nothing answers"),
        () = rig.engines[0].wait_until(|record| record.counts.requests == 1) => {}
    }
    for _ in 0..3 {
        // Each waiter that left has freed its place for the next.
        let waiting = tokio::time::timeout(Duration::from_secs(1), rig.post(CHAT, &waits));
        assert!(waiting.await.is_err());
    }
    assert_eq!(rig.engines[0].counts().requests, 1);
}

#[tokio::test(start_paused = true)]
async fn all_answers_of_a_request_end_together() {
    let rig = rig(Outcome::HangAfter { messages: 3 }).await;
    let mut exchange = rig.open(CHAT, &with(streamed(), json!({"n": 3}))).await;
    exchange.next_piece().await.unwrap();
    drop(exchange);
    assert_gone(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn an_abort_by_id_ends_that_request_only() {
    let script = Script {
        outcome: Outcome::HangAfter { messages: 2 },
        ..Script::fixed(tokenizer::ids("abc"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    let open = |rid: &str| json!({"text": "hi", "rid": rid, "sampling_params": {"n": 3}});
    let (first, second) = (open("job-1"), open("job-10"));
    let (first, second) = (rig.post("/generate", &first), rig.post("/generate", &second));
    tokio::pin!(second);
    let abort = async {
        rig.engines[0]
            .wait_until(|record| record.counts.requests == 2)
            .await;
        rig.post("/abort_request", &json!({"rid": "job-1"}))
            .await
            .body_json()
    };
    let (first, told) = tokio::select! {
        both = async { tokio::join!(first, abort) } => both,
        _ = &mut second => panic!("the other request must go on"),
    };
    assert_eq!(told["num_aborted"], 1);
    let answers = first.body_json();
    assert_eq!(answers.as_array().unwrap().len(), 3);
    assert!(
        answers
            .as_array()
            .unwrap()
            .iter()
            .all(|a| a["meta_info"]["finish_reason"]["type"] == "abort")
    );
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1)
        .await;
    assert_eq!(rig.engines[0].record().cancelled, ["job-1"]);
    assert_eq!(rig.engines[0].num_running(), 1);
    let unknown = rig.post("/abort_request", &json!({"rid": "nobody"})).await;
    assert_eq!(
        (unknown.status.as_u16(), &unknown.body_json()["num_aborted"]),
        (200, &json!(0))
    );
    let told = rig
        .post("/abort_request", &json!({"abort_all": true}))
        .await
        .body_json();
    assert_eq!(told["num_aborted"], 1);
}

#[tokio::test(start_paused = true)]
async fn an_abort_of_what_runs_for_others_reaches_the_workers() {
    let own = worker().control(|name, args| {
        assert_eq!(name, "abort");
        Ok(json!({"aborted": u64::from(args["rid"] == "theirs")}))
    });
    let rig = Rig::start([own, worker().without_engine_service()]).await;
    for (rid, aborted) in [("theirs", 1), ("nobody", 0)] {
        let told = rig.post("/abort_request", &json!({"rid": rid})).await.body_json();
        assert_eq!(told["num_aborted"], aborted);
    }
    rig.post("/abort_request", &json!({"abort_all": true})).await;
    let operations = rig.engines[0].record().operations;
    assert_eq!(operations.last().unwrap().1, json!({"all": true}));
    rig.post("/abort_request", &json!({}))
        .await
        .assert_error(400, "missing_field");
}
