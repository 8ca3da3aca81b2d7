//! `/v1/embeddings` and `/encode`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use common::{MODEL, Rig, worker};
use serde_json::json;
use smg_simulator::{Code, Script};

const OPENAI: &str = "/v1/embeddings";

#[tokio::test(start_paused = true)]
async fn each_prompt_has_its_vector_in_order() {
    let rig = Rig::start([worker(), worker()]).await;
    let one = rig
        .post(OPENAI, &json!({"model": MODEL, "input": "ab"}))
        .await
        .body_json();
    let expected = json!({
        "object": "list",
        "data": [{"object": "embedding", "embedding": [97.0, 98.0], "index": 0}],
        "model": MODEL,
        "usage": {"prompt_tokens": 2, "total_tokens": 2}
    });
    assert_eq!(one, expected);
    for input in [json!(["a", "bc"]), json!([[97], [98, 99]])] {
        let many = rig.post(OPENAI, &json!({"input": input})).await.body_json();
        assert_eq!(many["data"][0]["embedding"], json!([97.0]));
        assert_eq!(many["data"][1]["embedding"], json!([98.0, 99.0]));
        assert_eq!(
            (&many["data"][1]["index"], &many["usage"]["total_tokens"]),
            (&json!(1), &json!(3))
        );
    }
    let base64 = rig
        .post(OPENAI, &json!({"input": [97, 98], "encoding_format": "base64"}))
        .await;
    assert_eq!(base64.body_json()["data"][0]["embedding"], "AADCQgAAxEI=");
}

#[tokio::test(start_paused = true)]
async fn the_native_form_tells_the_id() {
    let rig = Rig::start([worker()]).await;
    let one = rig
        .post("/encode", &json!({"text": "ab", "rid": "job"}))
        .await
        .body_json();
    assert_eq!(
        (&one["embedding"], &one["meta_info"]["id"]),
        (&json!([97.0, 98.0]), &json!("job"))
    );
    assert_eq!(one["meta_info"]["prompt_tokens"], 2);
    assert!(one["meta_info"]["e2e_latency"].is_number());
    let many = rig
        .post("/encode", &json!({"input_ids": [[97], [98]], "rid": "job"}))
        .await
        .body_json();
    assert_eq!(
        (&many[0]["meta_info"]["id"], &many[1]["embedding"]),
        (&json!("job_0"), &json!([98.0]))
    );
    let record = rig.engines[0].record();
    assert_eq!(record.requests[0].message.request_id, "job");
    assert!(record.requests[0].metadata("grpc-timeout").is_some());
    assert!(record.requests[0].metadata("x-request-id").is_some());
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_is_named() {
    let rig = Rig::start([worker()]).await;
    for (body, code, param) in [
        (json!({}), "missing_field", "input"),
        (json!({"input": ""}), "invalid_value", "input"),
        (json!({"input": []}), "invalid_value", "input"),
        (
            json!({"input": "x", "encoding_format": "hex"}),
            "invalid_value",
            "encoding_format",
        ),
        (
            json!({"input": "x", "dimensions": 8}),
            "unsupported_parameter",
            "dimensions",
        ),
        (json!({"input": [258]}), "invalid_value", "input"),
        (
            json!({"input": "x".repeat(600)}),
            "context_length_exceeded",
            "input",
        ),
        (
            json!({"input": "x", "session_id": "s"}),
            "unsupported_parameter",
            "session_id",
        ),
    ] {
        let error = rig.post(OPENAI, &body).await.assert_error(400, code);
        assert_eq!(error["param"], param);
    }
    rig.post("/encode", &json!({}))
        .await
        .assert_error(400, "missing_field");
    for (body, param) in [
        (json!({"input_ids": [1_000_000_000]}), "input_ids"),
        (json!({"input_ids": [[97], [1_000_000_000]]}), "input_ids"),
        (json!({"input_ids": vec![[97]; 5000]}), "input_ids"),
        (json!({"text": vec!["a"; 5000]}), "text"),
    ] {
        let error = rig
            .post("/encode", &body)
            .await
            .assert_error(400, "invalid_value");
        assert_eq!(error["param"], param);
        assert!(error["message"].as_str().unwrap().starts_with(param), "{error}");
    }
    rig.post(OPENAI, &json!({"input": "x", "model": "other"}))
        .await
        .assert_error(404, "model_not_found");
    assert_eq!(rig.engines[0].counts().requests, 0);
}

#[tokio::test(start_paused = true)]
async fn another_worker_is_asked_where_that_may_help() {
    let refusing = |code| worker().script(Script::refusing(code, "not here"));
    let rig = Rig::start([refusing(Code::Unavailable), worker()]).await;
    for _ in 0..4 {
        assert_eq!(rig.post(OPENAI, &json!({"input": "x"})).await.status, 200);
    }
    assert!(rig.engines[1].counts().requests >= 4);
    let rig = Rig::start([refusing(Code::InvalidArgument), refusing(Code::InvalidArgument)]).await;
    let error = rig
        .post(OPENAI, &json!({"input": "x"}))
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["message"], "not here");
    assert_eq!(
        rig.engines
            .iter()
            .map(|engine| engine.counts().requests)
            .sum::<u64>(),
        1
    );
    let full = Rig::start([refusing(Code::ResourceExhausted)]).await;
    let refused = full.post(OPENAI, &json!({"input": "x"})).await;
    refused.assert_error(503, "worker_overloaded");
    assert!(refused.headers.contains_key("retry-after"));
}
