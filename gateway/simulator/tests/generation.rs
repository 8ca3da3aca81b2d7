//! Generations that go well, and those that the engine ends.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use common::{Rig, read_to_end, spec, spec_for_answers};
use smg_engine_client::{EngineError, FinishReason, GenerateSpec, Matched, Sampling, StatusClass};
use smg_simulator::{Code, Outcome, Script, SimulatedEngine, Style, Tokens};
use tokio::time::Instant;

fn engine(script: Script) -> smg_simulator::SimulatedEngineBuilder {
    SimulatedEngine::builder().script(script)
}

#[tokio::test(start_paused = true)]
async fn an_answer_arrives_as_chunks_and_a_completion() {
    let rig = Rig::start(engine(Script {
        tokens_per_message: 2,
        cached_tokens: 2,
        ..Script::fixed([7, 8, 9])
    }));
    let told = read_to_end(rig.generate(spec(&[1, 2, 3, 4])).await).await;
    assert_eq!(told.error, None);
    let chunks: Vec<_> = told
        .chunks
        .iter()
        .map(|c| (c.token_ids.clone(), c.completion_tokens))
        .collect();
    assert_eq!(chunks, [(vec![7, 8], 2), (vec![9], 3)]);
    let [completion] = told.completions.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!(completion.finish.reason, FinishReason::Stop);
    assert_eq!(completion.output_ids, [7, 8, 9]);
    assert_eq!(
        (
            completion.prompt_tokens,
            completion.completion_tokens,
            completion.cached_tokens
        ),
        (4, 3, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn the_request_carries_its_values_its_metadata_and_its_deadline() {
    let rig = Rig::start(engine(Script::default()));
    let wish = GenerateSpec {
        sampling: Sampling {
            temperature: 0.0,
            seed: Some(7),
            ..Sampling::default()
        },
        timeout: Some(Duration::from_secs(9)),
        trace: vec![
            ("traceparent".to_owned(), "00-aa-bb-01".to_owned()),
            ("x-request-id".to_owned(), "client-4".to_owned()),
            ("bad key".to_owned(), "left out".to_owned()),
        ],
        ..spec(&[5, 6])
    };
    read_to_end(rig.generate(wish).await).await;
    let [request] = rig.engine.record().requests.try_into().unwrap();
    assert_eq!(request.metadata("traceparent"), Some("00-aa-bb-01"));
    assert_eq!(request.metadata("x-request-id"), Some("client-4"));
    assert!(request.metadata("grpc-timeout").is_some());
    assert_eq!(request.message.request_id, "req-1");
    assert_eq!(request.message.tokenized.unwrap().input_ids, [5, 6]);
    let sampling = request.message.sampling_params.unwrap();
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.sampling_seed),
        (0.0, 1.0, Some(7))
    );
    assert!(request.message.stream);
}

#[tokio::test(start_paused = true)]
async fn several_answers_keep_their_indices() {
    let rig = Rig::start(engine(Script::default()));
    let told = read_to_end(rig.generate(spec_for_answers(&[3, 4, 5], 2)).await).await;
    assert_eq!(told.error, None);
    assert_eq!(told.token_ids(0), [3, 4, 5]);
    assert_eq!(told.token_ids(1), [3, 4, 5]);
    assert_eq!(
        told.completions.iter().map(|c| c.index).collect::<Vec<_>>(),
        [0, 1]
    );
}

#[tokio::test(start_paused = true)]
async fn limits_of_the_request_end_the_answer() {
    let rig = Rig::start(engine(Script {
        tokens: Tokens::Cycle {
            ids: vec![1, 2, 3],
            count: 100,
        },
        ..Script::default()
    }));
    let sampling = Sampling {
        max_new_tokens: Some(4),
        ..Sampling::default()
    };
    let told = read_to_end(
        rig.generate(GenerateSpec {
            sampling,
            ..spec(&[9])
        })
        .await,
    )
    .await;
    assert_eq!(told.token_ids(0), [1, 2, 3, 1]);
    assert_eq!(told.completions[0].finish.reason, FinishReason::Length);

    let sampling = Sampling {
        stop_token_ids: vec![2],
        ..Sampling::default()
    };
    let told = read_to_end(
        rig.generate(GenerateSpec {
            sampling,
            ..spec(&[9])
        })
        .await,
    )
    .await;
    assert_eq!(told.token_ids(0), [1, 2]);
    assert_eq!(told.completions[0].finish.matched, Some(Matched::Token(2)));
}

#[tokio::test(start_paused = true)]
async fn log_probabilities_come_in_rows() {
    let rig = Rig::start(engine(Script::fixed([11, 12])));
    let wish = GenerateSpec {
        return_logprob: true,
        logprob_start_len: 0,
        top_logprobs_num: 2,
        token_ids_logprob: vec![40],
        ..spec(&[5, 6])
    };
    let told = read_to_end(rig.generate(wish).await).await;
    let first = told.chunks[0].output_logprobs.as_ref().unwrap();
    assert_eq!(
        (first.token_ids.as_slice(), first.logprobs.len()),
        ([11].as_slice(), 1)
    );
    assert_eq!(first.top, [[(11, -0.2), (12, -0.3)]]);
    assert_eq!(first.chosen, [[(40, -0.1)]]);
    let prompt = told.chunks[0].input_logprobs.as_ref().unwrap();
    assert_eq!(prompt.logprobs, [None, Some(-0.7)]);
    assert!(told.chunks[1].input_logprobs.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_engine_that_answers_only_in_whole_is_read_as_a_stream() {
    let rig = Rig::start(engine(Script {
        style: Style::WholeOnly,
        ..Script::fixed([7, 8])
    }));
    let wish = GenerateSpec {
        return_logprob: true,
        logprob_start_len: 0,
        ..spec(&[1])
    };
    let told = read_to_end(rig.generate(wish).await).await;
    let [chunk] = told.chunks.as_slice() else {
        panic!("{told:?}")
    };
    assert_eq!(chunk.token_ids, [7, 8]);
    assert_eq!(chunk.output_logprobs.as_ref().unwrap().token_ids, [7, 8]);
    assert_eq!(chunk.input_logprobs.as_ref().unwrap().token_ids, [1]);
    assert_eq!(told.completions.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn chunks_without_counts_and_rows_are_understood() {
    let rig = Rig::start(engine(Script {
        style: Style::Bare,
        ..Script::fixed([7, 8])
    }));
    let told = read_to_end(
        rig.generate(GenerateSpec {
            return_logprob: true,
            ..spec(&[1])
        })
        .await,
    )
    .await;
    assert_eq!(told.token_ids(0), [7, 8]);
    assert!(told.chunks.iter().all(|chunk| chunk.output_logprobs.is_none()));
    assert_eq!(told.completions[0].completion_tokens, 2);
}

#[tokio::test(start_paused = true)]
async fn tokens_arrive_on_schedule() {
    let rig = Rig::start(engine(Script {
        first_token_delay: Duration::from_millis(500),
        token_delay: Duration::from_millis(100),
        ..Script::fixed([1, 2, 3])
    }));
    let started = Instant::now();
    let told = read_to_end(rig.generate(spec(&[1])).await).await;
    assert_eq!(told.token_ids(0), [1, 2, 3]);
    assert_eq!(started.elapsed().as_millis() / 10, 70);
}

#[tokio::test(start_paused = true)]
async fn refusals_keep_their_kind_and_text() {
    let table = [
        (Code::InvalidArgument, StatusClass::InvalidArgument, false),
        (Code::FailedPrecondition, StatusClass::InvalidArgument, false),
        (Code::NotFound, StatusClass::NotFound, false),
        (Code::AlreadyExists, StatusClass::Conflict, false),
        (Code::Unauthenticated, StatusClass::Unauthenticated, false),
        (Code::PermissionDenied, StatusClass::PermissionDenied, false),
        (Code::ResourceExhausted, StatusClass::ResourceExhausted, true),
        (Code::Unavailable, StatusClass::Unavailable, true),
        (Code::Cancelled, StatusClass::Cancelled, true),
        (Code::Unknown, StatusClass::Internal, true),
        (Code::Internal, StatusClass::Internal, false),
        (Code::Unimplemented, StatusClass::Unimplemented, false),
        (Code::DeadlineExceeded, StatusClass::Deadline, false),
    ];
    let rig = Rig::start(engine(Script::default()));
    for (code, class, retryable) in table {
        rig.engine.set_script(Script::refusing(code, "the reason"));
        let error = read_to_end(rig.generate(spec(&[1])).await).await.error.unwrap();
        assert_eq!(
            (error.status_class(), error.retryable()),
            (class, retryable),
            "{code:?}"
        );
        assert_eq!(error.message(), "the reason");
        assert!(error.to_string().contains("grpc://worker:30001"), "{error}");
    }
    rig.settle().await;
    assert_eq!(
        (rig.engine.counts().aborts, rig.engine.counts().cancelled),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn a_failure_in_mid_stream_follows_the_tokens() {
    let outcome = Outcome::FailAfter {
        messages: 2,
        code: Code::Internal,
        message: "out of pages".to_owned(),
    };
    let rig = Rig::start(engine(Script {
        outcome,
        ..Script::fixed([1, 2, 3])
    }));
    let told = read_to_end(rig.generate(spec(&[1])).await).await;
    assert_eq!(told.token_ids(0), [1, 2]);
    assert_eq!(told.error.unwrap().message(), "out of pages");
    rig.settle().await;
    assert_eq!(rig.engine.counts().aborts, 0);
}

#[tokio::test(start_paused = true)]
async fn an_end_without_completion_is_a_violation() {
    let rig = Rig::start(engine(Script::ending(Outcome::EndAfter { messages: 1 })));
    let error = read_to_end(rig.generate(spec(&[1, 2])).await)
        .await
        .error
        .unwrap();
    assert!(matches!(error, EngineError::Protocol { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("without a complete message for answer [0]"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_aborted_answer_says_so() {
    let rig = Rig::start(engine(Script::ending(Outcome::HangAfter { messages: 1 })));
    let mut stream = rig.generate(spec(&[4, 5])).await;
    assert_eq!(common::next_tokens(&mut stream).await, [4]);
    rig.client.abort("req-1", "operator").await.unwrap();
    let told = read_to_end(stream).await;
    assert_eq!(told.completions[0].finish.reason, FinishReason::Abort);
    assert_eq!(
        told.completions[0].finish.message.as_deref(),
        Some("aborted by request")
    );
    assert_eq!(rig.engine.record().aborts[0].reason, "operator");
}

#[tokio::test(start_paused = true)]
async fn a_long_prompt_passes_the_usual_message_limit() {
    let rig = Rig::start(engine(Script::fixed([1])));
    let prompt: Vec<u32> = (0..2_000_000).map(|id| id % 49152 + 200).collect();
    let told = read_to_end(rig.generate(spec(&prompt)).await).await;
    assert_eq!(told.error, None);
    assert_eq!(told.completions[0].prompt_tokens, 2_000_000);
}
