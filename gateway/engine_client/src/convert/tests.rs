//! Golden messages: `tests/wire/golden/NAME.json` is a message in protobuf's JSON form, `NAME.hex` its bytes.
//! The engine's tests read the same files.

use std::fs;
use std::path::PathBuf;

use prost::Message;
use prost_reflect::{DescriptorPool, DynamicMessage, SerializeOptions};
use serde_json::json;

use super::*;

fn golden(name: &str) -> String {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/wire/golden"));
    fs::read_to_string(folder.join(name))
        .unwrap()
        .trim_end()
        .to_owned()
}

/// A message as JSON, by the schema alone: the generated types take no part in it.
fn to_json(message: &str, bytes: &[u8]) -> Value {
    let files = ["common.proto", "sglang_scheduler.proto"];
    let descriptors = protox::compile(files, [concat!(env!("CARGO_MANIFEST_DIR"), "/../../proto")]).unwrap();
    let pool = DescriptorPool::from_file_descriptor_set(descriptors).unwrap();
    let descriptor = pool
        .get_message_by_name(&format!("sglang.grpc.scheduler.{message}"))
        .unwrap();
    let message = DynamicMessage::decode(descriptor, bytes).unwrap();
    let options = SerializeOptions::new().use_proto_field_name(true);
    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .unwrap()
}

fn golden_json(name: &str) -> Value {
    serde_json::from_str(&golden(name)).unwrap()
}

fn golden_bytes(name: &str) -> Vec<u8> {
    hex::decode(golden(name)).unwrap()
}

/// Every field differs from the wire's zero and from our default. Floats are exact in binary.
fn full_spec() -> GenerateSpec {
    GenerateSpec {
        request_id: "req-7".to_owned(),
        input_ids: vec![1, 300, 49151],
        sampling: full_sampling(),
        return_logprob: true,
        logprob_start_len: 2,
        top_logprobs_num: 5,
        token_ids_logprob: vec![11, 12],
        priority: Some(-3),
        extra_key: Some(String::new()),
        cache_salt: Some("salt".to_owned()),
        lora_name: "adapter".to_owned(),
        routing_key: Some("tenant-1".to_owned()),
        session: Some(Session {
            id: "talk".to_owned(),
            rid: Some("req-6".to_owned()),
            offset: Some(17),
            replace: true,
            drop_previous_output: true,
        }),
        custom_logit_processor: "{\"callable\": \"x\"}".to_owned(),
        require_reasoning: true,
        data_parallel_rank: Some(0),
        timeout: None,
        trace: Vec::new(),
    }
}

fn full_sampling() -> Sampling {
    Sampling {
        temperature: 0.75,
        top_p: 0.5,
        top_k: 40,
        min_p: 0.125,
        frequency_penalty: 0.25,
        presence_penalty: -0.5,
        repetition_penalty: 1.25,
        max_new_tokens: Some(0),
        min_new_tokens: 4,
        stop: vec!["END".to_owned(), "\u{2603}".to_owned()],
        stop_token_ids: vec![2, 49152],
        stop_regex: vec!["a+b".to_owned()],
        ignore_eos: true,
        no_stop_trim: true,
        skip_special_tokens: true,
        spaces_between_special_tokens: true,
        constraint: Some(Constraint::JsonSchema(r#"{"type":"object"}"#.to_owned())),
        n: 2,
        stream_interval: Some(8),
        logit_bias: [(9, -1.5), (100, 2.0)].into(),
        custom_params: json!({"level": 3, "tags": ["x", null]}).as_object().cloned(),
        seed: Some(-1_234_567_890_123),
    }
}

#[test]
fn the_full_request_is_the_golden_one() {
    let bytes = generate_request(full_spec()).encode_to_vec();
    assert_eq!(hex::encode(&bytes), golden("generate_request.hex"));
    assert_eq!(
        to_json("GenerateRequest", &bytes),
        golden_json("generate_request.json")
    );
}

#[test]
fn defaults_are_written_out() {
    let request = generate_request(GenerateSpec::default());
    let sampling = request.sampling_params.unwrap();
    assert_eq!(
        (sampling.temperature, sampling.top_p, sampling.repetition_penalty),
        (1.0, 1.0, 1.0)
    );
    assert_eq!(
        (sampling.top_k, sampling.n, sampling.max_new_tokens),
        (-1, 1, None)
    );
    assert!(sampling.skip_special_tokens && sampling.spaces_between_special_tokens);
    assert_eq!(request.logprob_start_len, -1);
    assert!(request.stream);
}

#[test]
fn each_constraint_has_its_field() {
    use wire::sampling_params::Constraint as Wire;
    let text = || "x".to_owned();
    let table = [
        (Constraint::JsonSchema(text()), Wire::JsonSchema(text())),
        (Constraint::Regex(text()), Wire::Regex(text())),
        (Constraint::Ebnf(text()), Wire::EbnfGrammar(text())),
        (Constraint::StructuralTag(text()), Wire::StructuralTag(text())),
    ];
    for (given, expected) in table {
        assert_eq!(constraint(given), expected);
    }
}

#[test]
fn the_golden_chunk_is_read() {
    let bytes = golden_bytes("generate_chunk.hex");
    assert_eq!(
        to_json("GenerateResponse", &bytes),
        golden_json("generate_chunk.json")
    );
    let message = wire::GenerateResponse::decode(bytes.as_slice()).unwrap();
    let Some(wire::generate_response::Response::Chunk(chunk)) = message.response else {
        panic!("no chunk")
    };
    let expected = TokenChunk {
        index: 1,
        token_ids: vec![7, 49151],
        prompt_tokens: 3,
        completion_tokens: 2,
        cached_tokens: 1,
        output_logprobs: Some(LogprobRows {
            logprobs: vec![Some(-0.25), Some(-0.5)],
            token_ids: vec![7, 49151],
            top: vec![vec![(7, -0.25), (8, -1.5)], vec![(49151, -0.5), (9, -0.75)]],
            chosen: vec![vec![(11, -2.0)], vec![(11, -4.0)]],
        }),
        input_logprobs: Some(LogprobRows {
            logprobs: vec![None, Some(-0.125)],
            token_ids: vec![1, 300],
            top: vec![vec![], vec![(300, -0.125), (301, -3.0)]],
            chosen: vec![vec![], vec![(11, -8.0)]],
        }),
        cached_tiers: Some(CachedTiers {
            device: 0,
            host: 1,
            storage: 0,
        }),
        times: Some(StageTimes {
            received: 1000.25,
            compiled: Some(1000.5),
            admitted: Some(1001.0),
            prefilled: Some(1001.5),
        }),
    };
    assert_eq!(token_chunk(chunk), expected);
}

#[test]
fn the_golden_completion_is_read() {
    let bytes = golden_bytes("generate_complete.hex");
    assert_eq!(
        to_json("GenerateResponse", &bytes),
        golden_json("generate_complete.json")
    );
    let message = wire::GenerateResponse::decode(bytes.as_slice()).unwrap();
    let Some(wire::generate_response::Response::Complete(complete)) = message.response else {
        panic!("no complete")
    };
    let expected = Completion {
        index: 1,
        finish: Finish {
            reason: FinishReason::Stop,
            matched: Some(Matched::Text("END".to_owned())),
            message: None,
            status_code: None,
        },
        prompt_tokens: 3,
        completion_tokens: 2,
        cached_tokens: 1,
        reasoning_tokens: 4,
        num_retractions: 5,
        spec_accepted_tokens: 6,
        spec_draft_tokens: 7,
        output_ids: vec![7, 49151],
        cached_tiers: Some(CachedTiers {
            device: 1,
            host: 0,
            storage: 0,
        }),
        times: Some(StageTimes {
            received: 1000.25,
            admitted: Some(1001.0),
            ..StageTimes::default()
        }),
    };
    assert_eq!(ending(complete).unwrap().completion, expected);
}

fn finish_of(complete: wire::GenerateComplete) -> Finish {
    ending(complete).unwrap().completion.finish
}

#[test]
fn an_abort_tells_its_reason_and_status() {
    let finish = finish_of(wire::GenerateComplete {
        finish_reason: "abort".to_owned(),
        abort_message: "the queue is full".to_owned(),
        abort_status_code: 503,
        ..Default::default()
    });
    assert_eq!(finish.reason, FinishReason::Abort);
    assert_eq!(
        (finish.message.as_deref(), finish.status_code),
        (Some("the queue is full"), Some(503))
    );
}

#[test]
fn a_foreign_error_is_an_abort_with_a_status() {
    let finish = finish_of(wire::GenerateComplete {
        finish_reason: "error".to_owned(),
        ..Default::default()
    });
    assert_eq!(
        (finish.reason, finish.status_code),
        (FinishReason::Abort, Some(500))
    );
    assert!(finish.message.is_some());
}

#[test]
fn finish_reasons_outside_the_protocol_are_refused() {
    assert_eq!(
        finish_of(wire::GenerateComplete::default()).reason,
        FinishReason::Stop
    );
    let odd = wire::GenerateComplete {
        finish_reason: "eos".to_owned(),
        ..Default::default()
    };
    let refusal = ending(odd).err().unwrap();
    assert_eq!(
        refusal,
        "finish_reason is \"eos\", allowed are stop, length and abort"
    );
}

#[test]
fn negative_counts_mean_not_told() {
    let card = wire::GetModelInfoResponse {
        max_context_length: -1,
        eos_token_ids: vec![-1, 2],
        ..wire::GetModelInfoResponse::default()
    };
    let info = model_info(card).unwrap();
    assert_eq!((info.max_context_length, info.eos_token_ids), (0, vec![2]));
}
