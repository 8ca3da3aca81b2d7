//! Clients that send or read slowly, or not at all: they hold nothing that others need for longer than it is allowed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{Rig, chat, tokenizer, with, worker};
use serde_json::{Value, json};
use smg_simulator::{Outcome, Script};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

const CHAT: &str = "/v1/chat/completions";

/// More than the buffers between a worker and a client hold: each event repeats its answer so far.
fn flood() -> Value {
    json!({"text": "hi", "stream": true, "sampling_params": {"n": 64, "max_new_tokens": 500}})
}

fn prolific() -> Script {
    Script::fixed(vec![97; 500])
}

#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_holds_no_permit_and_is_given_up() {
    let options = json!({"max_concurrent_requests": 1, "queue_size": 0});
    let rig = Rig::with_options([worker()], &options).await;
    let mut slow = rig.raw().await;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: gateway\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    slow.write_all(head.as_bytes()).await.unwrap();
    let before = Instant::now();
    for _ in 0..3 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    assert!(before.elapsed() < Duration::from_secs(1));
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert_eq!(before.elapsed().as_secs(), 60);
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    assert!(answer.contains("\"code\":\"body_timeout\""), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_read_is_left_after_the_stall_limit() {
    let options = json!({"stream_stall_timeout_secs": 7, "max_concurrent_requests": 1, "queue_size": 0});
    let rig = Rig::with_options([worker().script(prolific())], &options).await;
    let before = Instant::now();
    let exchange = rig.open("/generate", &flood()).await;
    assert_eq!(exchange.status(), 200);
    rig.post(CHAT, &chat("hi"))
        .await
        .assert_error(429, "rate_limit_exceeded");
    let load = async || rig.get("/workers").await.body_json()["workers"][0]["load"].clone();
    while load().await != json!(0) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(before.elapsed().as_secs(), 7);
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1 && record.counts.aborts == 1)
        .await;
    rig.engines[0].set_script(Script::fixed(tokenizer::ids("ok")));
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    drop(exchange);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_reads_slowly_gets_everything() {
    let options = json!({"stream_stall_timeout_secs": 7});
    let rig = Rig::with_options([worker().script(prolific())], &options).await;
    let mut slow = rig.raw().await;
    let body = flood().to_string();
    let head = format!(
        "POST /generate HTTP/1.1\r\nhost: gateway\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    slow.write_all((head + &body).as_bytes()).await.unwrap();
    let mut piece = vec![0; 64 << 10];
    for _ in 0..20 {
        tokio::time::sleep(Duration::from_secs(6)).await;
        slow.read_exact(&mut piece).await.unwrap();
    }
    let mut rest = String::new();
    slow.read_to_string(&mut rest).await.unwrap();
    assert!(rest.ends_with("data: [DONE]\n\n\r\n0\r\n\r\n"));
}

#[tokio::test(start_paused = true)]
async fn a_generation_whose_client_leaves_is_counted_once() {
    let hangs = Script {
        outcome: Outcome::HangAfter { messages: 1 },
        ..Script::fixed(tokenizer::ids("abc"))
    };
    let rig = Rig::start([worker().script(hangs)]).await;
    let streamed = with(chat("hi"), json!({"stream": true}));
    drop(rig.open(CHAT, &streamed).await);
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1)
        .await;
    let unstreamed = chat("hi");
    let left = tokio::time::timeout(Duration::from_secs(1), rig.post(CHAT, &unstreamed));
    assert!(left.await.is_err());
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 2)
        .await;
    // One that is heard to its end is none of them.
    rig.engines[0].set_script(Script::fixed(tokenizer::ids("abc")));
    assert_eq!(rig.post(CHAT, &streamed).await.status, 200);
    let metrics = rig.get("/metrics").await;
    let of_clients: Vec<&str> = metrics
        .text()
        .lines()
        .filter(|line| line.starts_with("smg_router_request_errors_total"))
        .collect();
    assert_eq!(of_clients.len(), 1, "{of_clients:?}");
    assert!(
        of_clients[0].contains("error_type=\"client_closed\"") && of_clients[0].ends_with(" 2"),
        "{of_clients:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn times_count_from_the_arrival_of_a_request() {
    let script = Script {
        token_delay: Duration::from_secs(5),
        ..Script::fixed(tokenizer::ids("ab"))
    };
    let options = json!({"max_concurrent_requests": 1, "queue_size": 1});
    let rig = Rig::with_options([worker().script(script)], &options).await;
    let (first, second) = (chat("one"), chat("two"));
    let (first, second) = tokio::join!(rig.post(CHAT, &first), rig.post(CHAT, &second));
    assert_eq!((first.status.as_u16(), second.status.as_u16()), (200, 200));
    let metrics = rig.get("/metrics").await;
    let sum = metrics
        .text()
        .lines()
        .find(|line| line.starts_with("smg_router_generation_duration_seconds_sum"))
        .and_then(|line| line.rsplit(' ').next())
        .and_then(|number| number.parse::<f64>().ok())
        .unwrap();
    // Five seconds for one, and five of waiting before five for the other.
    assert!((14.9..15.1).contains(&sum), "{sum}");
}
