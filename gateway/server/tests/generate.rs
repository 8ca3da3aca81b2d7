//! The native endpoint.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{Rig, tokenizer, with, worker};
use http::Method;
use serde_json::{Value, json};
use smg_engine_client::{CachedTiers, StageTimes};
use smg_simulator::{Script, SimulatedEngineBuilder, Style, Tokens};

fn says(text: &str) -> SimulatedEngineBuilder {
    worker().script(Script {
        cached_tokens: 1,
        ..Script::fixed(tokenizer::ids(text))
    })
}

fn parrot() -> SimulatedEngineBuilder {
    worker().script(Script {
        tokens: Tokens::Echo,
        ..Script::default()
    })
}

#[tokio::test(start_paused = true)]
async fn one_prompt_gives_one_object_with_its_meta_info() {
    let rig = Rig::start([says("abc")]).await;
    let body = json!({"text": "hi", "rid": "job-1"});
    let answer = rig.post("/generate", &body).await.body_json();
    assert_eq!(answer["text"], "abc");
    assert_eq!(answer["output_ids"], json!(tokenizer::ids("abc")));
    let info = &answer["meta_info"];
    assert_eq!(info["id"], "job-1");
    assert_eq!(info["finish_reason"]["type"], "stop");
    assert_eq!(
        (&info["prompt_tokens"], &info["completion_tokens"]),
        (&json!(2), &json!(3))
    );
    assert_eq!(
        (&info["cached_tokens"], &info["weight_version"]),
        (&json!(1), &json!("default"))
    );
    assert_eq!(
        (&info["dp_rank"], &info["num_retractions"]),
        (&Value::Null, &json!(0))
    );
    assert!(info["e2e_latency"].is_number());
    assert!(answer.get("index").is_none());
    // The worker gets the client's own id as it is.
    assert_eq!(rig.engines[0].record().requests[0].message.request_id, "job-1");
}

#[tokio::test(start_paused = true)]
async fn events_hold_the_whole_text_so_far() {
    let rig = Rig::start([says("abc")]).await;
    let events = rig
        .post("/generate", &json!({"text": "hi", "stream": true}))
        .await
        .events();
    let texts: Vec<_> = events
        .iter()
        .map(|event| event["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts, ["a", "ab", "abc", "abc"]);
    assert_eq!(events[2]["meta_info"]["finish_reason"], Value::Null);
    assert_eq!(events[3]["meta_info"]["finish_reason"]["type"], "stop");
    assert_eq!(events[3]["output_ids"], json!(tokenizer::ids("abc")));
}

#[tokio::test(start_paused = true)]
async fn a_body_without_a_declared_type_is_accepted() {
    let rig = Rig::start([says("x")]).await;
    for (method, headers) in [
        (Method::POST, vec![]),
        (
            Method::POST,
            vec![("content-type", "application/x-www-form-urlencoded")],
        ),
        (Method::PUT, vec![("content-type", "text/plain")]),
    ] {
        let body = Bytes::from_static(b"{\"text\": \"hi\"}");
        let answer = rig.send(method, "/generate", &headers, body).await.whole().await;
        assert_eq!(answer.status, 200);
        assert_eq!(answer.body_json()["text"], "x");
    }
}

#[tokio::test(start_paused = true)]
async fn batches_and_several_answers_come_as_a_list_prompt_by_prompt() {
    let rig = Rig::start([parrot(), parrot()]).await;
    let texts = |answer: Value| -> Vec<String> {
        answer
            .as_array()
            .unwrap()
            .iter()
            .map(|a| a["text"].as_str().unwrap().to_owned())
            .collect()
    };
    let batch = rig
        .post("/generate", &json!({"text": ["one", "two"]}))
        .await
        .body_json();
    assert_eq!(texts(batch), ["one", "two"]);
    let single = rig.post("/generate", &json!({"text": ["one"]})).await.body_json();
    assert_eq!(texts(single), ["one"]);
    let body = json!({"input_ids": [tokenizer::ids("a"), tokenizer::ids("b")], "sampling_params": {"n": 2}});
    assert_eq!(
        texts(rig.post("/generate", &body).await.body_json()),
        ["a", "a", "b", "b"]
    );
    let events = rig
        .post("/generate", &with(body, json!({"stream": true})))
        .await
        .events();
    let mut last = vec![String::new(); 4];
    for event in events {
        last[event["index"].as_u64().unwrap() as usize] = event["text"].as_str().unwrap().to_owned();
    }
    assert_eq!(last, ["a", "a", "b", "b"]);
}

#[tokio::test(start_paused = true)]
async fn no_new_tokens_plant_the_prefix() {
    let script = Script {
        tokens: Tokens::Echo,
        style: Style::WholeOnly,
        ..Script::default()
    };
    let rig = Rig::start([worker().script(script)]).await;
    let body = json!({"text": "hi", "sampling_params": {"max_new_tokens": 0}, "return_logprob": true,
                      "logprob_start_len": 0});
    let answer = rig.post("/generate", &body).await.body_json();
    assert_eq!((&answer["text"], &answer["output_ids"]), (&json!(""), &json!([])));
    let info = &answer["meta_info"];
    assert_eq!(info["finish_reason"], json!({"type": "length", "length": 0}));
    assert_eq!(info["completion_tokens"], 0);
    assert_eq!(info["input_token_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(info["input_token_logprobs"][0], json!([null, 104, null]));
}

#[tokio::test(start_paused = true)]
async fn logprobs_are_triples_and_stream_to_the_whole_list() {
    let rig = Rig::start([says("ab")]).await;
    let body = json!({"text": "hi", "return_logprob": true, "top_logprobs_num": 2, "token_ids_logprob": [5, 6],
                      "return_text_in_logprobs": true});
    let whole = rig.post("/generate", &body).await.body_json()["meta_info"].clone();
    assert_eq!(whole["output_token_logprobs"][0][1], 97);
    assert_eq!(whole["output_token_logprobs"][0][2], "a");
    assert_eq!(whole["output_token_logprobs_length"], 2);
    assert_eq!(whole["output_top_logprobs"][1].as_array().unwrap().len(), 2);
    assert_eq!(whole["output_token_ids_logprobs"][0][1][1], 6);
    let streamed = rig
        .post("/generate", &with(body, json!({"stream": true})))
        .await
        .events();
    let last = &streamed.last().unwrap()["meta_info"];
    for list in [
        "output_token_logprobs",
        "output_top_logprobs",
        "output_token_ids_logprobs",
        "input_token_logprobs",
    ] {
        assert_eq!(last[list], whole[list], "{list}");
    }
}

#[tokio::test(start_paused = true)]
async fn logprobs_of_the_prompt_stream_at_the_start_and_at_the_end_only() {
    let rig = Rig::start([says("abcdef")]).await;
    let body = json!({"text": "hello", "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 2,
                      "token_ids_logprob": [5], "sampling_params": {"n": 2}, "stream": true});
    let streamed = rig.post("/generate", &body).await.events();
    for list in [
        "input_token_logprobs",
        "input_top_logprobs",
        "input_token_ids_logprobs",
    ] {
        for index in 0..2 {
            let events = streamed.iter().filter(|event| event["index"] == index);
            let lists: Vec<_> = events.map(|event| &event["meta_info"][list]).collect();
            let lens: Vec<_> = lists.iter().map(|list| list.as_array().unwrap().len()).collect();
            // Six tokens, and the end.
            assert_eq!(lens, [5, 0, 0, 0, 0, 0, 5], "{list} of answer {index}");
            assert_eq!(lists[0], lists[6], "{list} of answer {index}");
        }
    }
    let tokens = |event: &Value| {
        event["meta_info"]["output_token_logprobs"]
            .as_array()
            .unwrap()
            .len()
    };
    let first: Vec<_> = streamed
        .iter()
        .filter(|event| event["index"] == 0)
        .map(tokens)
        .collect();
    assert_eq!(first, [1, 2, 3, 4, 5, 6, 6]);
}

#[tokio::test(start_paused = true)]
async fn a_matched_stop_cuts_ids_and_logprobs_alike() {
    let script = Script {
        tokens_per_message: 8,
        ..Script::fixed(tokenizer::ids("go STOP on"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    let body = json!({"text": "hi", "return_logprob": true, "sampling_params": {"stop": "ST"}});
    let answer = rig.post("/generate", &body).await.body_json();
    assert_eq!(answer["text"], "go ");
    assert_eq!(answer["output_ids"], json!(tokenizer::ids("go ST")));
    let info = &answer["meta_info"];
    assert_eq!(info["finish_reason"], json!({"type": "stop", "matched": "ST"}));
    assert_eq!(
        (&info["completion_tokens"], &info["output_token_logprobs_length"]),
        (&json!(5), &json!(5))
    );
    rig.engines[0]
        .wait_until(|record| record.counts.aborts == 1)
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_text_that_cannot_fit_is_refused_by_its_bytes() {
    let rig = Rig::start([worker()]).await;
    let reply = rig
        .post("/generate", &json!({"text": "hello world ".repeat(1_000_000)}))
        .await;
    reply.assert_error(400, "context_length_exceeded");
    let message = reply.body_json()["error"]["message"].to_string();
    assert!(message.contains("12000000 bytes"), "{message}");
    assert_eq!(rig.engines[0].record().requests.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn no_stop_comes_before_the_least_number_of_tokens() {
    for tokens_per_message in [1, 4] {
        let rig = Rig::start([worker().script(Script {
            tokens_per_message,
            ..Script::fixed(tokenizer::ids("abcabca"))
        })])
        .await;
        for (sampling, text) in [
            (json!({"stop": "b", "min_new_tokens": 2}), "a"),
            (json!({"stop": "b", "min_new_tokens": 3}), "abca"),
            (json!({"stop_regex": "b", "min_new_tokens": 3}), "abca"),
            // Half of the stop lies before: it does not count.
            (json!({"stop": "bc", "min_new_tokens": 3}), "abca"),
            (json!({"stop": "b", "min_new_tokens": 6}), "abcabca"),
        ] {
            let body = json!({"text": "hi", "sampling_params": sampling});
            let whole = rig.post("/generate", &body).await.body_json();
            assert_eq!(whole["text"], text, "{sampling}");
            let events = rig
                .post("/generate", &with(body, json!({"stream": true})))
                .await
                .events();
            let last = events.last().unwrap();
            assert_eq!(last["text"], text, "{sampling}");
            assert_eq!(last["output_ids"], whole["output_ids"]);
            assert_eq!(
                last["meta_info"]["finish_reason"],
                whole["meta_info"]["finish_reason"]
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tiers_of_the_cache_and_times_are_told_where_the_worker_tells() {
    let script = Script {
        cached_tokens: 3,
        cached_tiers: Some(CachedTiers {
            device: 1,
            host: 2,
            storage: 0,
        }),
        times: Some(StageTimes {
            received: 100.0,
            compiled: Some(100.5),
            admitted: Some(102.5),
            prefilled: Some(103.0),
        }),
        first_token_delay: Duration::from_secs(3),
        token_delay: Duration::from_millis(500),
        ..Script::fixed(tokenizer::ids("abcd"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    // A stop that the gateway finds leaves the worker's last message unread.
    for sampling in [json!({}), json!({"stop": "d"})] {
        let body = json!({"text": "hi", "sampling_params": sampling});
        let whole = rig.post("/generate", &body).await.body_json();
        let events = rig
            .post("/generate", &with(body, json!({"stream": true})))
            .await
            .events();
        let first = &events[0]["meta_info"];
        let details = json!({"device": 1, "host": 2, "storage": 0});
        assert_eq!(first["cached_tokens_details"], details);
        assert!(first.get("queue_time").is_none());
        for info in [&whole["meta_info"], &events.last().unwrap()["meta_info"]] {
            assert_eq!(info["cached_tokens_details"], details);
            assert_eq!(
                (&info["queue_time"], &info["forward_entry_time"]),
                (&json!(2.0), &json!(102.5))
            );
            assert_eq!(info["prefill_finished_time"], 103.0);
            let close = |name: &str, expected: f64| {
                let given = info[name].as_f64().unwrap();
                assert!((given - expected).abs() < 0.1, "{name} = {given}");
            };
            close("first_token_latency", 3.0);
            close("decode_throughput", 2.0);
            let moment = |name: &str| info[name].as_f64().unwrap();
            let passed = moment("response_sent_to_client_ts") - moment("request_received_ts");
            assert!((passed - 4.5).abs() < 0.1, "{passed}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_tells_neither_leaves_the_keys_out() {
    let rig = Rig::start([says("abc")]).await;
    let answer = rig.post("/generate", &json!({"text": "hi"})).await.body_json();
    for key in ["cached_tokens_details", "queue_time", "request_received_ts"] {
        assert!(answer["meta_info"].get(key).is_none(), "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn usage_tells_the_tiers_to_who_asks() {
    let script = Script {
        cached_tokens: 3,
        cached_tiers: Some(CachedTiers {
            host: 3,
            ..CachedTiers::default()
        }),
        ..Script::fixed(tokenizer::ids("ab"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    let details = json!({"device": 0, "host": 3, "storage": 0});
    for (path, body) in [
        ("/v1/completions", json!({"prompt": "hi"})),
        ("/v1/chat/completions", common::chat("hi")),
    ] {
        let silent = rig.post(path, &body).await.body_json();
        assert_eq!(
            silent["usage"]["prompt_tokens_details"],
            json!({"cached_tokens": 3})
        );
        let asks = with(body, json!({"return_cached_tokens_details": true}));
        let told = rig.post(path, &asks).await.body_json();
        assert_eq!(
            told["usage"]["prompt_tokens_details"]["cached_tokens_details"],
            details
        );
        let streamed = with(
            asks,
            json!({"stream": true, "stream_options": {"include_usage": true}}),
        );
        let events = rig.post(path, &streamed).await.events();
        let usage = &events.last().unwrap()["usage"];
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens_details"], details);
    }
}
