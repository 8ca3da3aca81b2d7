//! Requests that cannot be served: the right status, the field, no worker bothered, and the gateway goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use bytes::Bytes;
use common::{CONTEXT, MODEL, Rig, chat, with, worker};
use http::Method;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";
const GENERATE: &str = "/generate";
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

fn completion(more: Value) -> Value {
    with(json!({"model": MODEL, "prompt": "hi"}), more)
}

async fn assert_refused(cases: &[(&str, Value, &str)]) {
    let rig = Rig::start([worker()]).await;
    for (path, body, param) in cases {
        let answer = rig.post(path, body).await;
        let error = &answer.body_json()["error"];
        assert_eq!(
            (answer.status.as_u16(), &error["param"]),
            (400, &json!(param)),
            "{body}: {error}"
        );
        assert_eq!(error["type"], "invalid_request_error");
    }
    assert_eq!(rig.engines[0].counts().requests, 0);
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn wrong_fields_of_a_chat_are_named_and_reach_no_worker() {
    let cases = [
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"temperature": -1}), "temperature"),
        (json!({"top_k": 0.01}), "top_k"),
        (json!({"top_k": "5"}), "top_k"),
        (json!({"n": 1.5}), "n"),
        (json!({"n": 0}), "n"),
        (json!({"max_tokens": -1}), "max_tokens"),
        (json!({"messages": []}), "messages"),
        (json!({"logit_bias": {"999999": 1}}), "logit_bias"),
        (json!({"stop_token_ids": [258]}), "stop_token_ids"),
        (json!({"stop_regex": "("}), "stop_regex"),
    ];
    assert_refused(&cases.map(|(fields, param)| (CHAT, with(chat("hi"), fields), param))).await;
}

#[tokio::test(start_paused = true)]
async fn wrong_prompts_are_named_and_reach_no_worker() {
    let logprobs = |more: Value| with(json!({"text": "hi", "return_logprob": true}), more);
    assert_refused(&[
        (COMPLETIONS, completion(json!({"prompt": ""})), "prompt"),
        (COMPLETIONS, completion(json!({"prompt": [258]})), "prompt"),
        (
            COMPLETIONS,
            completion(json!({"prompt": vec!["x"; 5000]})),
            "prompt",
        ),
        (GENERATE, json!({"text": ""}), "text"),
        (GENERATE, json!({"input_ids": [1, 258]}), "input_ids"),
        (
            GENERATE,
            json!({"text": "hi", "sampling_params": {"top_p": 0}}),
            "sampling_params.top_p",
        ),
        (
            GENERATE,
            logprobs(json!({"token_ids_logprob": [300]})),
            "token_ids_logprob",
        ),
        (
            GENERATE,
            logprobs(json!({"logprob_start_len": 3})),
            "logprob_start_len",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn log_probabilities_of_a_prompt_are_bounded_in_all() {
    let rig = Rig::start([worker()]).await;
    let text = "x".repeat(500);
    let ask = |more: Value| with(json!({"text": text, "return_logprob": true}), more);
    // 500 positions x 1024 x 4 answers.
    let wide = json!({"logprob_start_len": 0, "top_logprobs_num": 1024,
                      "sampling_params": {"n": 4, "max_new_tokens": 1}});
    let refused = rig.post(GENERATE, &ask(wide.clone())).await;
    let error = refused.assert_error(400, "invalid_value");
    assert_eq!(error["param"], "top_logprobs_num");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("2048000") && message.contains("2000000"),
        "{message}"
    );
    let ids: Vec<u32> = (0..256).collect();
    let chosen = json!({"logprob_start_len": 0, "token_ids_logprob": ids,
                        "sampling_params": {"n": 16, "max_new_tokens": 1}});
    let error = rig
        .post(GENERATE, &ask(chosen))
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["param"], "token_ids_logprob");
    // Several prompts count together.
    let many = json!({"text": vec![text.clone(); 5], "logprob_start_len": 0, "top_logprobs_num": 1000,
                      "sampling_params": {"max_new_tokens": 1}});
    rig.post(GENERATE, &ask(many))
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(rig.engines[0].counts().requests, 0);
    // Fewer positions, or none of the prompt, pass.
    for start in [400, -1] {
        let body = ask(with(wide.clone(), json!({"logprob_start_len": start})));
        assert_eq!(rig.post(GENERATE, &body).await.status, 200, "{start}");
    }
}

#[tokio::test(start_paused = true)]
async fn bodies_that_are_no_json_are_refused() {
    let rig = Rig::start([worker()]).await;
    let deep = format!("{{\"messages\": {}1{}}}", "[".repeat(50_000), "]".repeat(50_000));
    let bodies: [&[u8]; 7] = [
        b"",
        b"{",
        b"null",
        b"[1]",
        b"{\"messages\": NaN}",
        b"{\"model\": \"\xff\xfe\"}",
        deep.as_bytes(),
    ];
    for path in [
        CHAT,
        COMPLETIONS,
        "/generate",
        "/tokenize",
        "/detokenize",
        "/abort_request",
    ] {
        for body in bodies {
            let answer = rig
                .send(Method::POST, path, &JSON, Bytes::copy_from_slice(body))
                .await
                .whole()
                .await;
            assert_eq!(answer.status, 400, "{path}: {answer:?}");
            assert!(answer.body_json()["error"]["message"].is_string());
        }
    }
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn openai_endpoints_want_json_by_name() {
    let rig = Rig::start([worker()]).await;
    for path in [CHAT, COMPLETIONS, "/v1/tokenize"] {
        let body = Bytes::from(chat("hi").to_string());
        let answer = rig
            .send(Method::POST, path, &[("content-type", "text/plain")], body)
            .await
            .whole()
            .await;
        let error = answer.assert_error(400, "unsupported_media_type");
        assert_eq!(
            error["message"],
            "Unsupported Media Type: Only 'application/json' is allowed. Send the header \
             `content-type: application/json`"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn unknown_models_of_every_form_are_not_found() {
    let rig = Rig::start([worker()]).await;
    for model in ["no/such:model", "", &"x".repeat(300), "模型"] {
        let error = rig
            .post(CHAT, &with(chat("hi"), json!({"model": model})))
            .await
            .assert_error(404, "model_not_found");
        assert!(error["message"].as_str().unwrap().contains(MODEL), "{error}");
        rig.post("/generate", &json!({"text": "hi", "model": model}))
            .await
            .assert_error(404, "model_not_found");
    }
}

#[tokio::test(start_paused = true)]
async fn the_model_may_be_left_out_where_there_is_one() {
    let one = Rig::start([worker(), worker()]).await;
    let body = json!({"messages": [{"role": "user", "content": "hi"}]});
    assert_eq!(one.post(CHAT, &body).await.status, 200);
    let two = Rig::start([worker(), worker().card(common::card("other"))]).await;
    for (path, body) in [(CHAT, body), ("/generate", json!({"text": "hi"}))] {
        let error = two.post(path, &body).await.assert_error(400, "missing_field");
        assert_eq!(error["param"], "model");
        assert!(error["message"].as_str().unwrap().contains("demo, other"));
    }
}

#[tokio::test(start_paused = true)]
async fn lengths_are_checked_before_a_worker_is_asked() {
    let rig = Rig::start([worker()]).await;
    let prompt = |len: u32| "x".repeat(len as usize);
    for stream in [false, true] {
        let ask = |len: u32, max: u32| json!({"model": MODEL, "prompt": prompt(len), "max_tokens": max, "stream": stream});
        let too_long = rig
            .post(COMPLETIONS, &ask(CONTEXT, 1))
            .await
            .assert_error(400, "context_length_exceeded");
        assert_eq!(
            too_long["message"],
            "The input (512 tokens) is longer than the model's context length (512 tokens)."
        );
        let sum = rig
            .post(COMPLETIONS, &ask(CONTEXT / 2, CONTEXT))
            .await
            .assert_error(400, "context_length_exceeded");
        let message = sum["message"].as_str().unwrap();
        assert!(
            message.contains("256") && message.contains("512") && message.contains("768"),
            "{message}"
        );
        for (len, max) in [(CONTEXT - 1, 1), (CONTEXT - 2, 1), (CONTEXT - 2, 2)] {
            assert_eq!(
                rig.post(COMPLETIONS, &ask(len, max)).await.status,
                200,
                "{len} + {max}"
            );
        }
        rig.post(COMPLETIONS, &ask(CONTEXT - 1, 5))
            .await
            .assert_error(400, "context_length_exceeded");
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_over_the_limit_is_refused() {
    let rig = Rig::with_options([worker()], &json!({"max_payload_size": 2048})).await;
    let answer = rig.post(CHAT, &chat(&"x".repeat(3000))).await;
    answer.assert_error(413, "payload_too_large");
    // Below the limit it is a matter of the context.
    rig.post(CHAT, &chat(&"x".repeat(1500)))
        .await
        .assert_error(400, "context_length_exceeded");
}

#[tokio::test(start_paused = true)]
async fn unknown_paths_and_wrong_methods_are_json() {
    let rig = Rig::start([worker()]).await;
    rig.get("/v1/nothing").await.assert_error(404, "not_found");
    let wrong = rig.get(CHAT).await;
    wrong.assert_error(405, "method_not_allowed");
    assert_eq!(wrong.headers["allow"], "POST");
}

#[tokio::test(start_paused = true)]
async fn no_refusal_is_plain_text() {
    let rig = Rig::start([worker()]).await;
    let cases = [
        (Method::GET, "/v1/models/%ff", 400, "invalid_url"),
        (Method::GET, "/v1/models/a/%ff/b", 400, "invalid_url"),
        (Method::GET, "/workers/%ff", 400, "invalid_url"),
        (Method::GET, "/workers/%20", 404, "WORKER_NOT_FOUND"),
        (Method::POST, "/flush_cache?timeout=%ff", 400, "invalid_value"),
        (
            Method::POST,
            "/flush_cache?timeout=1&timeout=x",
            400,
            "invalid_value",
        ),
        (Method::GET, "/%ff", 400, "invalid_url"),
        (Method::GET, "/v1/models/", 404, "not_found"),
        (Method::POST, "//v1/chat/completions", 404, "not_found"),
        (Method::OPTIONS, "*", 404, "not_found"),
        (Method::OPTIONS, CHAT, 405, "method_not_allowed"),
        (Method::DELETE, GENERATE, 405, "method_not_allowed"),
        (Method::POST, "/health", 405, "method_not_allowed"),
        (Method::POST, "/metrics", 405, "method_not_allowed"),
        (Method::POST, "/workers/1", 405, "method_not_allowed"),
        (Method::PATCH, "/workers/1", 403, "admin_key_required"),
        (
            Method::from_bytes(b"BREW").unwrap(),
            "/readiness",
            405,
            "method_not_allowed",
        ),
        (Method::POST, CHAT, 400, "unsupported_media_type"),
        (Method::POST, GENERATE, 400, "invalid_body"),
    ];
    for (method, path, status, code) in cases {
        let answer = rig
            .send(method.clone(), path, &[], Bytes::new())
            .await
            .whole()
            .await;
        assert_eq!(
            answer.headers["content-type"], "application/json",
            "{method} {path}"
        );
        answer.assert_error(status, code);
    }
}

#[tokio::test(start_paused = true)]
async fn a_compressed_body_is_refused_by_its_header() {
    let rig = Rig::start([worker()]).await;
    for path in [CHAT, COMPLETIONS, GENERATE, "/tokenize", "/abort_request"] {
        for coding in ["gzip", "br", "deflate", "zstd", "identity, gzip"] {
            let headers = [JSON[0], ("content-encoding", coding)];
            let body = Bytes::from_static(b"\x1f\x8b\x08");
            let answer = rig.send(Method::POST, path, &headers, body).await.whole().await;
            let error = answer.assert_error(415, "unsupported_content_encoding");
            assert_eq!(error["param"], "content-encoding");
            let message = error["message"].as_str().unwrap();
            assert!(
                message.contains(&format!("got `{coding}`")) && message.contains("identity"),
                "{message}"
            );
            assert_eq!(answer.headers["accept-encoding"], "identity");
        }
    }
    let plain = [JSON[0], ("content-encoding", "identity")];
    let body = Bytes::from(chat("hi").to_string());
    assert_eq!(rig.send(Method::POST, CHAT, &plain, body).await.status(), 200);
    let no_body = [("content-encoding", "gzip")];
    assert_eq!(
        rig.send(Method::GET, "/v1/models", &no_body, Bytes::new())
            .await
            .status(),
        200
    );
}

/// Errors about values of 200,000 characters.
async fn assert_clipped(cases: &[(&str, Value)]) {
    let rig = Rig::start([worker()]).await;
    for (path, body) in cases {
        let answer = rig.post(path, body).await;
        let given = answer.text();
        assert!(
            (400..=404).contains(&answer.status.as_u16()) && given.len() < 1500,
            "{path}: {given:.300}"
        );
        assert!(!given.contains(&"x".repeat(130)), "{path}: {given}");
    }
}

#[tokio::test(start_paused = true)]
async fn errors_about_a_chat_do_not_repeat_it() {
    let long = "x".repeat(200_000);
    let part = json!([{"role": "user", "content": [{"type": long}]}]);
    let fields = [
        json!({"model": long}),
        json!({"temperature": long}),
        json!({"logit_bias": {&long: 1}}),
        json!({"logit_bias": {&long: "no number"}}),
        json!({"stop": [[long]]}),
        json!({"rid": long}),
        json!({"chat_template_kwargs": long}),
        json!({"messages": [{"role": long, "content": "hi"}]}),
        json!({"messages": part}),
        json!({"messages": long}),
        json!({"tools": [long]}),
    ];
    assert_clipped(&fields.map(|fields| (CHAT, with(chat("hi"), fields)))).await;
    assert_clipped(&[(CHAT, json!(long))]).await;
    let rig = Rig::start([worker()]).await;
    let named = rig.post(CHAT, &with(chat("hi"), json!({"model": long}))).await;
    let error = named.assert_error(404, "model_not_found");
    let shown = &long[..100];
    assert_eq!(
        error["message"],
        format!("The model `{shown}… (200000 characters)` does not exist; this server has: demo")
    );
}

#[tokio::test(start_paused = true)]
async fn errors_about_other_bodies_do_not_repeat_them() {
    let long = "x".repeat(200_000);
    let native = |more: Value| with(json!({"text": "hi"}), more);
    let completions = [
        json!({"model": long}),
        json!({"logprobs": long}),
        json!({"prompt": {&long: long}}),
        json!({"stop_regex": format!("({}", &long[..200])}),
        json!({"stop_regex": format!("({long}")}),
    ];
    assert_clipped(&completions.map(|fields| (COMPLETIONS, completion(fields)))).await;
    let natives = [
        json!({"model": long}),
        json!({"stream": long}),
        json!({"sampling_params": {&long: 1}}),
        json!({"sampling_params": {"n": long}}),
        json!({"sampling_params": long}),
    ];
    assert_clipped(&natives.map(|fields| (GENERATE, native(fields)))).await;
    assert_clipped(&[
        (GENERATE, json!({"input_ids": [long]})),
        ("/tokenize", json!({"prompt": "hi", "model": long})),
        ("/tokenize", json!({"prompt": 5, &long: long})),
        ("/detokenize", json!({"tokens": long})),
        ("/abort_request", json!({"rid": {&long: 1}})),
        ("/abort_request", json!({"abort_all": long})),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn errors_about_a_url_do_not_repeat_it() {
    let rig = Rig::start([worker()]).await;
    let path = "x".repeat(50_000);
    for answer in [
        rig.get(&format!("/v1/models/{path}")).await,
        rig.get(&format!("/workers/{path}")).await,
        rig.get(&format!("/workers/%ff{path}")).await,
        rig.get(&format!("/flush_cache?timeout={path}")).await,
        rig.get(&format!("/{path}")).await,
        rig.post(&format!("/v1/models/{path}"), &json!({})).await,
    ] {
        assert!(
            answer.status.is_client_error() && answer.body.len() < 600,
            "{answer:?}"
        );
        assert!(answer.text().contains("characters)"), "{answer:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_supported_is_refused_by_name() {
    let rig = Rig::start([worker()]).await;
    let body = with(chat("hi"), json!({"functions": [{"name": "f"}]}));
    let error = rig
        .post(CHAT, &body)
        .await
        .assert_error(400, "unsupported_parameter");
    assert_eq!(error["param"], "functions");
    let body = with(
        chat("hi"),
        json!({"priority": 5, "spaces_between_special_tokens": false}),
    );
    assert_eq!(rig.post(CHAT, &body).await.status, 200);
    let sampling = rig.engines[0].record().requests[0]
        .message
        .sampling_params
        .clone();
    assert!(!sampling.unwrap().spaces_between_special_tokens);
}

#[tokio::test(start_paused = true)]
async fn a_live_rid_cannot_be_used_twice() {
    let script = smg_simulator::Script::ending(smg_simulator::Outcome::HangBeforeHeaders);
    let rig = Rig::start([worker().script(script)]).await;
    let body = json!({"text": "hi", "rid": "job"});
    let first = rig.post("/generate", &body);
    tokio::pin!(first);
    let second = async {
        rig.engines[0]
            .wait_until(|record| record.counts.requests == 1)
            .await;
        rig.post("/generate", &body).await
    };
    let second = tokio::select! {
        _ = &mut first => panic!("the first request hangs"),
        second = second => second,
    };
    let error = second.assert_error(400, "duplicate_request_id");
    assert_eq!(error["message"], "Duplicate request ID detected: job");
}
