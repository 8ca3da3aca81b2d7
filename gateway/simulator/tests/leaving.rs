//! A reader that leaves: in every phase the rpc is cancelled and the engine told, and never without need.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{Rig, next_tokens, read_to_end, spec, spec_for_answers};
use futures::StreamExt;
use smg_engine_client::{EngineError, EngineEvent, GenerateSpec, GenerateStream, StatusClass};
use smg_simulator::{Outcome, Record, Script, SimulatedEngine};

fn rig(script: Script) -> Rig {
    Rig::start(SimulatedEngine::builder().script(script))
}

fn hanging(outcome: Outcome) -> Rig {
    // Deaf to aborts, so that only the end of the rpc can end it.
    rig(Script {
        heeds_aborts: false,
        ..Script::ending(outcome)
    })
}

/// Polls a stream that says nothing until the engine's record satisfies a condition.
async fn poll_until(rig: &Rig, stream: &mut GenerateStream, holds: impl FnMut(&Record) -> bool) {
    tokio::select! {
        event = stream.next() => panic!("expected silence, got {event:?}"),
        () = rig.until(holds) => {}
    }
}

async fn assert_cancelled_and_aborted(rig: &Rig) {
    rig.until(|record| record.counts.cancelled == 1 && record.counts.aborts == 1)
        .await;
    let record = rig.engine.record();
    assert_eq!(record.cancelled, ["req-1"]);
    assert_eq!(record.aborts[0].request_id, "req-1");
    assert_eq!(record.aborts[0].reason, "the client left");
    assert_eq!(rig.engine.num_running(), 0);
}

#[tokio::test(start_paused = true)]
async fn before_the_headers() {
    let rig = hanging(Outcome::HangBeforeHeaders);
    let mut stream = rig.generate(spec(&[1])).await;
    poll_until(&rig, &mut stream, |record| record.counts.requests == 1).await;
    drop(stream);
    assert_cancelled_and_aborted(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn after_the_headers_in_silence() {
    let rig = hanging(Outcome::HangAfter { messages: 0 });
    let mut stream = rig.generate(spec(&[1])).await;
    poll_until(&rig, &mut stream, |record| record.counts.requests == 1).await;
    drop(stream);
    assert_cancelled_and_aborted(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn in_mid_stream() {
    let rig = hanging(Outcome::HangAfter { messages: 1 });
    let mut stream = rig.generate(spec(&[1, 2])).await;
    assert_eq!(next_tokens(&mut stream).await, [1]);
    drop(stream);
    assert_cancelled_and_aborted(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn with_one_of_two_answers_complete() {
    let rig = rig(Script::ending(Outcome::Complete));
    let mut stream = rig.generate(spec_for_answers(&[1], 2)).await;
    while !matches!(stream.next().await, Some(Ok(EngineEvent::Complete(_)))) {}
    drop(stream);
    rig.until(|record| record.counts.aborts == 1).await;
}

#[tokio::test(start_paused = true)]
async fn after_the_completion_nothing_is_sent() {
    let rig = rig(Script::default());
    let mut stream = rig.generate(spec(&[1])).await;
    while !matches!(stream.next().await, Some(Ok(EngineEvent::Complete(_)))) {}
    drop(stream);
    read_to_end(rig.generate(spec(&[1, 2])).await).await;
    rig.settle().await;
    assert_eq!(
        (rig.engine.counts().aborts, rig.engine.counts().cancelled),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn before_anything_was_sent_nothing_is_sent() {
    let rig = rig(Script::default());
    drop(rig.generate(spec(&[1])).await);
    rig.settle().await;
    assert_eq!((rig.engine.counts().requests, rig.engine.counts().aborts), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn outside_of_the_runtime() {
    let rig = hanging(Outcome::HangAfter { messages: 1 });
    let mut stream = rig.generate(spec(&[1])).await;
    next_tokens(&mut stream).await;
    std::thread::spawn(move || drop(stream)).join().unwrap();
    assert_cancelled_and_aborted(&rig).await;
}

#[tokio::test(start_paused = true)]
async fn while_no_connection_comes_about() {
    let rig = Rig::without_server(SimulatedEngine::builder());
    rig.network.swallow(common::address());
    let mut stream = rig.generate(spec(&[1])).await;
    assert!(futures::poll!(stream.next()).is_pending());
    drop(stream);
    // The abort gives up too, so that a drain ends.
    tokio::time::timeout(Duration::from_secs(6), rig.settle())
        .await
        .unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_deadline_cancels_and_aborts() {
    let rig = hanging(Outcome::HangAfter { messages: 1 });
    let wish = GenerateSpec {
        timeout: Some(Duration::from_secs(2)),
        ..spec(&[1])
    };
    let told = read_to_end(rig.generate(wish).await).await;
    assert_eq!(told.token_ids(0), [1]);
    let error = told.error.unwrap();
    assert_eq!(error.status_class(), StatusClass::Deadline);
    assert!(error.to_string().contains("within 2 s"), "{error}");
    rig.until(|record| record.counts.cancelled == 1 && record.counts.aborts == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_holds_before_the_headers() {
    let rig = hanging(Outcome::HangBeforeHeaders);
    let wish = GenerateSpec {
        timeout: Some(Duration::from_secs(2)),
        ..spec(&[1])
    };
    let error = read_to_end(rig.generate(wish).await).await.error.unwrap();
    assert!(matches!(error, EngineError::Deadline { .. }), "{error}");
    rig.until(|record| record.counts.aborts == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_connection_aborts_over_a_new_one() {
    let rig = hanging(Outcome::HangAfter { messages: 1 });
    let mut stream = rig.generate(spec(&[1])).await;
    next_tokens(&mut stream).await;
    rig.engine.drop_connections();
    let error = read_to_end(stream).await.error.unwrap();
    assert!(matches!(error, EngineError::Disconnected { .. }), "{error}");
    assert!(error.retryable());
    rig.until(|record| record.counts.aborts == 1 && record.counts.connections == 2)
        .await;
}
