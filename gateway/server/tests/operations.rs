//! Everything besides generation: models, tokenizing, workers, metrics, access, limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::time::Duration;

use bytes::Bytes;
use common::{CONTEXT, MODEL, Rig, card, chat, tokenizer, with, worker};
use http::Method;
use serde_json::{Value, json};
use smg_simulator::{
    Outcome, Script,
    proto::scheduler::{QueueMetrics, SchedulerLoad},
};

const CHAT: &str = "/v1/chat/completions";

#[tokio::test(start_paused = true)]
async fn models_are_listed_once_and_found_by_name() {
    let rig = Rig::start([worker(), worker(), worker().card(card("org/other"))]).await;
    let list = rig.get("/v1/models").await.body_json();
    assert_eq!(list["object"], "list");
    let ids: Vec<_> = list["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, [MODEL, "org/other"]);
    assert_eq!(list["data"][0]["max_model_len"], CONTEXT);
    assert_eq!(
        rig.get("/v1/models/org/other").await.body_json()["id"],
        "org/other"
    );
    rig.get("/v1/models/nothing")
        .await
        .assert_error(404, "model_not_found");
}

#[tokio::test(start_paused = true)]
async fn text_and_tokens_are_turned_into_each_other() {
    let rig = Rig::start([worker()]).await;
    for prefix in ["", "/v1"] {
        let one = rig
            .post(&format!("{prefix}/tokenize"), &json!({"prompt": "hé"}))
            .await
            .body_json();
        assert_eq!(
            one,
            json!({"tokens": [104, 195, 169], "count": 3, "char_count": 2, "max_model_len": CONTEXT})
        );
        let many = rig
            .post(&format!("{prefix}/tokenize"), &json!({"prompt": ["a", "bc"]}))
            .await
            .body_json();
        assert_eq!(
            (&many["tokens"], &many["count"]),
            (&json!([[97], [98, 99]]), &json!([1, 2]))
        );
        let text = rig
            .post(
                &format!("{prefix}/detokenize"),
                &json!({"tokens": [104, 105, 256]}),
            )
            .await
            .body_json();
        assert_eq!(text, json!({"text": "hi"}));
        let body = json!({"tokens": [[104], [256]], "skip_special_tokens": false});
        let texts = rig.post(&format!("{prefix}/detokenize"), &body).await.body_json();
        assert_eq!(texts, json!({"text": ["h", "<|end|>"]}));
    }
    let rendered = rig
        .post(
            "/tokenize",
            &json!({"messages": [{"role": "user", "content": "x"}]}),
        )
        .await
        .body_json();
    assert_eq!(rendered["tokens"][0], tokenizer::TURN_START);
    rig.post("/detokenize", &json!({"tokens": [258]}))
        .await
        .assert_error(400, "invalid_value");
}

#[tokio::test(start_paused = true)]
async fn a_long_text_is_tokenized_beside_the_other_requests() {
    let rig = Rig::start([worker()]).await;
    let answer = rig
        .post("/tokenize", &json!({"prompt": "é".repeat(20_000)}))
        .await
        .body_json();
    assert_eq!(
        (&answer["count"], &answer["char_count"]),
        (&json!(40_000), &json!(20_000))
    );
    rig.post(CHAT, &chat(&"x".repeat(50_000)))
        .await
        .assert_error(400, "context_length_exceeded");
}

#[tokio::test(start_paused = true)]
async fn the_workers_view_has_the_documented_keys() {
    let rig = Rig::start([worker()]).await;
    let list = rig.get("/workers").await.body_json();
    assert_eq!(
        (&list["total"], &list["stats"]["regular_count"]),
        (&json!(1), &json!(1))
    );
    let view = &list["workers"][0];
    let expected = json!({"model_id": MODEL, "worker_type": "regular", "is_healthy": true, "load": 0,
                          "connection_mode": "gRPC", "url": "grpc://worker-0:30001"});
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(view[key], *value, "{key}");
    }
    let one = rig
        .get(&format!("/workers/{}", view["id"].as_str().unwrap()))
        .await;
    assert_eq!(one.body_json()["url"], view["url"]);
    assert_eq!(view["disable_health_check"], false);
    let unprobed = Rig::with_options([worker()], &json!({"disable_health_check": true})).await;
    let list = unprobed.get("/workers").await.body_json();
    assert_eq!(list["workers"][0]["disable_health_check"], true);
    rig.get("/workers/99").await.assert_error(404, "WORKER_NOT_FOUND");
}

#[tokio::test(start_paused = true)]
async fn server_info_comes_from_the_engine_or_from_the_common_rpc() {
    let own = worker().control(|name, _| match name {
        "server_info" => Ok(json!({"cache_hit_rate": 0.5})),
        other => Err(format!("no {other}")),
    });
    let rig = Rig::start([own]).await;
    for path in ["/server_info", "/get_server_info"] {
        assert_eq!(rig.get(path).await.body_json(), json!({"cache_hit_rate": 0.5}));
    }
    for foreign in [worker().without_engine_service(), worker()] {
        let rig = Rig::start([foreign.server_args(json!({"tp_size": 2}))]).await;
        assert_eq!(rig.get("/server_info").await.body_json()["tp_size"], 2);
    }
    for path in ["/model_info", "/get_model_info"] {
        let info = rig.get(path).await.body_json();
        assert_eq!(
            (&info["model_path"], &info["is_generation"]),
            (&json!(MODEL), &json!(true))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn loads_are_told_in_the_three_forms() {
    let rig = Rig::start([worker(), worker()]).await;
    let native = rig.get("/get_load").await.body_json();
    assert_eq!(native.as_array().unwrap().len(), 2);
    assert!(native[0]["num_waiting_reqs"].is_number());
    let by_worker = rig.get("/get_loads").await.body_json();
    assert_eq!(by_worker["workers"][1]["worker"], "grpc://worker-1:30001");
    let detailed = rig.get("/v1/loads").await.body_json();
    assert_eq!(detailed["loads"][0]["worker"], "grpc://worker-0:30001");
    assert_eq!(detailed["num_accelerators"], 2);
}

#[tokio::test(start_paused = true)]
async fn loads_are_told_by_rank_section_and_format() {
    let rig = Rig::start([worker(), worker()]).await;
    rig.engines[1].set_load(SchedulerLoad {
        dp_rank: 1,
        num_used_tokens: 30,
        num_waiting_uncached_tokens: 5,
        token_usage: 0.25,
        queues: Some(QueueMetrics {
            waiting: 3,
            ..QueueMetrics::default()
        }),
        ..SchedulerLoad::default()
    });
    let core = rig.get("/v1/loads?dp_rank=1").await.body_json();
    assert_eq!(core["loads"].as_array().unwrap().len(), 1);
    let load = &core["loads"][0];
    assert_eq!(
        (&load["num_total_tokens"], &load["num_active_tokens"]),
        (&json!(35), &json!(30))
    );
    assert_eq!(rig.engines[1].record().load_sections, [Vec::<String>::new()]);
    let text = rig.get("/v1/loads?include=core,queues&format=prometheus").await;
    assert!(
        text.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    let labels = r#"{worker="grpc://worker-1:30001",dp_rank="1"}"#;
    for line in [
        "# TYPE sglang:num_used_tokens gauge".to_owned(),
        format!("sglang:num_used_tokens{labels} 30"),
        format!("sglang:token_usage{labels} 0.25"),
        format!("sglang:queues_waiting{labels} 3"),
    ] {
        assert!(text.text().lines().any(|told| told == line), "{line}");
    }
    assert_eq!(rig.engines[1].record().load_sections[1], ["core", "queues"]);
    for (query, allowed) in [
        ("dp_rank=2", "must be one of 0, 1"),
        ("dp_rank=-1", "a whole number"),
        ("include=core,speed", "memory"),
        ("format=xml", "json or prometheus"),
    ] {
        let error = rig.get(&format!("/v1/loads?{query}")).await;
        let error = error.assert_error(400, "invalid_value");
        assert!(error["message"].as_str().unwrap().contains(allowed), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_flush_reaches_every_worker_and_forgets_predictions() {
    let rig = Rig::start([worker(), worker()]).await;
    let answer = rig.post("/flush_cache", &json!({})).await;
    assert_eq!(
        (answer.status.as_u16(), &answer.body_json()["workers_flushed"]),
        (200, &json!(2))
    );
    assert_eq!([0, 1].map(|worker| rig.engines[worker].counts().flushes), [1, 1]);
    assert_eq!(rig.get("/flush_cache?timeout=3").await.status, 200);
    rig.get("/flush_cache?timeout=soon")
        .await
        .assert_error(400, "invalid_value");
}

#[tokio::test(start_paused = true)]
async fn metrics_are_histograms_and_gauges_of_the_fleet() {
    let script = Script {
        cached_tokens: 2,
        ..Script::fixed(tokenizer::ids("abc"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    rig.post(CHAT, &chat("hi")).await;
    rig.get("/no/such/path").await;
    let answer = rig.get("/metrics").await;
    assert!(
        answer.headers["content-type"]
            .to_str()
            .unwrap()
            .starts_with("text/plain")
    );
    let text = answer.text();
    for line in [
        "smg_http_requests_total{method=\"POST\",path=\"/v1/chat/completions\"} 1",
        "smg_http_requests_total{method=\"GET\",path=\"unmatched\"} 1",
        "smg_worker_health{worker=\"grpc://worker-0:30001\"} 1",
        "smg_worker_requests_active{worker=\"grpc://worker-0:30001\"} 0",
        "# TYPE smg_router_ttft_seconds histogram",
        "# TYPE smg_http_request_duration_seconds histogram",
    ] {
        assert!(text.contains(line), "{line} in\n{text}");
    }
    let count = |name: &str, with: &str| {
        let line = text
            .lines()
            .find(|line| line.starts_with(name) && line.contains(with));
        line.unwrap_or_else(|| panic!("{name} {with} in\n{text}"))
            .rsplit(' ')
            .next()
            .unwrap()
            .to_owned()
    };
    assert_eq!(count("smg_router_tokens_total", "token_type=\"output\""), "3");
    assert_eq!(count("smg_router_tokens_total", "token_type=\"cached\""), "2");
    assert_eq!(count("smg_router_ttft_seconds_count", "endpoint=\"chat\""), "1");
    assert_eq!(count("smg_cache_reported_tokens_total", ""), "2");
}

#[tokio::test(start_paused = true)]
async fn engine_metrics_are_joined_with_the_workers_name() {
    let engine = || {
        worker().control(|name, _| {
            assert_eq!(name, "metrics");
            Ok(json!({"text": "# TYPE sglang:num_requests gauge\nsglang:num_requests 1\n"}))
        })
    };
    let rig = Rig::start([engine(), engine()]).await;
    let text = rig.get("/engine_metrics").await.text().to_owned();
    assert_eq!(text.matches("# TYPE").count(), 1);
    assert!(
        text.contains("sglang:num_requests{worker_addr=\"grpc://worker-1:30001\"} 1"),
        "{text}"
    );
    let foreign = Rig::start([worker()]).await;
    foreign
        .get("/engine_metrics")
        .await
        .assert_error(502, "worker_failed");
}

#[tokio::test(start_paused = true)]
async fn the_key_guards_all_but_probes_and_metrics() {
    let rig = Rig::with_options([worker()], &json!({"api_key": "secret"})).await;
    for path in [
        "/health",
        "/liveness",
        "/readiness",
        "/health_generate",
        "/metrics",
    ] {
        assert_eq!(rig.get(path).await.status, 200, "{path}");
    }
    for path in [
        "/v1/models",
        "/workers",
        "/server_info",
        "/get_load",
        "/flush_cache",
    ] {
        rig.get(path).await.assert_error(401, "invalid_api_key");
    }
    for path in [CHAT, "/generate", "/abort_request", "/tokenize"] {
        rig.post(path, &chat("hi"))
            .await
            .assert_error(401, "invalid_api_key");
    }
    let headers = [
        ("content-type", "application/json"),
        ("authorization", "Bearer secret"),
    ];
    let body = Bytes::from(chat("hi").to_string());
    assert_eq!(
        rig.send(Method::POST, CHAT, &headers, body)
            .await
            .whole()
            .await
            .status,
        200
    );
}

#[tokio::test(start_paused = true)]
async fn beyond_the_limits_callers_are_refused_and_probes_are_not() {
    let script = Script {
        token_delay: Duration::from_secs(1),
        ..Script::fixed(tokenizer::ids("abc"))
    };
    let options = json!({"max_concurrent_requests": 1, "queue_size": 1});
    let rig = Rig::with_options([worker().script(script)], &options).await;
    let body = with(chat("hi"), json!({"stream": true}));
    // The place is held until the stream's last byte, not until its head.
    let running = rig.open(CHAT, &body).await;
    assert_eq!(running.status(), 200);
    let waiting = rig.post(CHAT, &body);
    let refused = async {
        tokio::task::yield_now().await;
        rig.post(CHAT, &body).await
    };
    let ((waited, refused), ran) = tokio::join!(async { tokio::join!(waiting, refused) }, running.whole());
    let (waited, refused) = if waited.status == 200 {
        (waited, refused)
    } else {
        (refused, waited)
    };
    refused.assert_error(429, "rate_limit_exceeded");
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!((waited.events().len(), ran.events().len()), (5, 5));
    assert_eq!(rig.get("/health").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_front_door_is_healthy_with_its_worker_and_tells_its_metrics() {
    let rig = Rig::front_door(worker().control(|_, _| Ok(json!({"text": "sglang:x 1\n"})))).await;
    rig.until_ready(1).await;
    assert_eq!(rig.get("/health").await.status, 200);
    let metrics = rig.get("/metrics").await;
    assert!(metrics.text().contains("sglang:x 1") && metrics.text().contains("smg_http_requests_total"));
    rig.engines[0].set_health(smg_simulator::HealthScript::NotReady("draining".into()));
    let unhealthy = async {
        while rig.get("/health").await.status != 503 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), unhealthy)
        .await
        .unwrap();
    assert_eq!(rig.get("/health").await.body_json()["message"], "draining");
}

#[tokio::test(start_paused = true)]
async fn requests_with_a_common_prefix_go_to_the_worker_that_has_it() {
    let rig = Rig::start([worker(), worker()]).await;
    let prompt = |tail: &str| json!({"model": MODEL, "prompt": format!("{}{tail}", "a shared opening ".repeat(8)), "max_tokens": 1});
    for tail in 0..8 {
        assert_eq!(
            rig.post("/v1/completions", &prompt(&tail.to_string()))
                .await
                .status,
            200
        );
    }
    let mut counts = [0, 1].map(|worker| rig.engines[worker].counts().requests);
    counts.sort_unstable();
    assert_eq!(counts, [0, 8]);
}

#[tokio::test(start_paused = true)]
async fn a_thousand_streams_leave_the_probes_quick() {
    let script = Script {
        outcome: Outcome::HangAfter { messages: 1 },
        ..Script::fixed(tokenizer::ids("ab"))
    };
    let rig = Rig::start([worker().script(script)]).await;
    let body = with(chat("hi"), json!({"stream": true}));
    let streams = futures::future::join_all((0..1000).map(|_| rig.open(CHAT, &body))).await;
    assert!(streams.iter().all(|stream| stream.status() == 200));
    let before = tokio::time::Instant::now();
    assert_eq!(rig.get("/health").await.status, 200);
    assert_eq!(rig.get("/readiness").await.status, 200);
    assert!(before.elapsed() < Duration::from_millis(50));
    let load = |workers: Value| workers["workers"][0]["load"].as_u64();
    assert_eq!(load(rig.get("/workers").await.body_json()), Some(1000));
    drop(streams);
    rig.until(|rig| rig.engines[0].num_running() == 0).await;
    assert_eq!(load(rig.get("/workers").await.body_json()), Some(0));
}
