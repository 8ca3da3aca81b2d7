//! Workers that come, change and go while the gateway runs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::{path::PathBuf, time::Duration};

use common::{Exchange, MODEL, Rig, address_of, chat, tokenizer, with, worker};
use http::Method;
use serde_json::{Value, json};
use smg_simulator::{Outcome, Script, SimulatedEngineBuilder};

const CHAT: &str = "/v1/chat/completions";

/// A worker whose streams begin at once and take 10 seconds.
fn slow() -> SimulatedEngineBuilder {
    worker().script(Script {
        token_delay: Duration::from_secs(5),
        ..Script::fixed(tokenizer::ids("abc"))
    })
}

/// A gateway of administrators with the key `root`.
async fn rig(workers: impl IntoIterator<Item = SimulatedEngineBuilder>, more: Value) -> Rig {
    Rig::with_options(workers, &with(json!({"admin_api_key": "root"}), more)).await
}

async fn add(rig: &Rig, worker: usize, more: Value) -> String {
    let body = with(json!({"url": address_of(worker).to_string()}), more);
    let answer = rig.administer(Method::POST, "/workers", &body).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    answer.body_json()["worker_id"].as_str().unwrap().to_owned()
}

async fn remove(rig: &Rig, id: &str, drain: &str) {
    let answer = rig
        .administer(Method::DELETE, &format!("/workers/{id}{drain}"), &Value::Null)
        .await;
    assert_eq!(answer.status, 202, "{answer:?}");
}

/// What `GET /workers` says of each.
async fn workers(rig: &Rig) -> Vec<Value> {
    let body = rig.get("/workers").await.body_json();
    body["workers"].as_array().unwrap().clone()
}

async fn until_gone(rig: &Rig, id: &str) {
    for _ in 0..100_000 {
        if workers(rig).await.iter().all(|worker| worker["id"] != id) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", workers(rig).await);
}

async fn stream(rig: &Rig, text: &str) -> Exchange {
    let exchange = rig.open(CHAT, &with(chat(text), json!({"stream": true}))).await;
    assert_eq!(exchange.status(), 200);
    exchange
}

#[tokio::test(start_paused = true)]
async fn an_added_worker_serves_and_is_listed() {
    let mut rig = rig([worker()], json!({"policy": "round_robin"})).await;
    let joined = rig.join(worker());
    let body = json!({"url": "grpc://worker-1:30001/", "labels": {"zone": "b"}, "priority": 7, "cost": 0.5});
    let answer = rig.administer(Method::POST, "/workers", &body).await;
    assert_eq!(
        (
            answer.status.as_u16(),
            &answer.headers["location"],
            &answer.body_json()["worker_id"]
        ),
        (202, &"/workers/2".parse().unwrap(), &json!("2"))
    );
    let one = rig.get("/workers/2").await.body_json();
    assert_eq!(one["job_status"]["job_type"], "AddWorker");
    rig.until_ready(2).await;
    let one = rig.get("/workers/2").await.body_json();
    assert_eq!(
        [
            &one["url"],
            &one["priority"],
            &one["cost"],
            &one["metadata"]["zone"],
            &one["status"]
        ],
        [
            &json!("grpc://worker-1:30001"),
            &json!(7),
            &json!(0.5),
            &json!("b"),
            &json!("ready")
        ]
    );
    for _ in 0..2 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    assert_eq!(rig.engines[joined].counts().requests, 1);
    let again = rig
        .administer(Method::POST, "/workers", &json!({"url": "grpc://worker-1:30001"}))
        .await;
    let error = again.assert_error(409, "WORKER_ALREADY_EXISTS");
    assert!(error["message"].as_str().unwrap().contains("id 2"), "{error}");
    assert_eq!(workers(&rig).await.len(), 2);
}

/// A body that adds no worker: which of its fields is wrong, and what is said of it.
const NO_WORKERS: [(&str, &str, &str); 13] = [
    ("{}", "url", "grpc://HOST:PORT or unix:///PATH"),
    (r#"{"url": 7}"#, "url", "grpc://HOST:PORT, got 7"),
    (
        r#"{"url": "http://a:1"}"#,
        "url",
        "over gRPC, not HTTP, got `http://a:1`",
    ),
    (
        r#"{"url": "a"}"#,
        "url",
        "must be grpc://HOST:PORT or unix:///PATH, got `a`",
    ),
    (
        r#"{"url": "grpc://a:1", "cost": 0}"#,
        "cost",
        "from 0.001 to 1000, got 0",
    ),
    (
        r#"{"url": "grpc://a:1", "cost": "a"}"#,
        "cost",
        "a number from 0.001 to 1000, got",
    ),
    (
        r#"{"url": "grpc://a:1", "priority": -1}"#,
        "priority",
        "a whole number from 0",
    ),
    (
        r#"{"url": "grpc://a:1", "labels": []}"#,
        "labels",
        "an object of strings",
    ),
    (
        r#"{"url": "grpc://a:1", "labels": {"a": 1}}"#,
        "labels.a",
        "a string, or null",
    ),
    (
        r#"{"url": "grpc://a:1", "labels": {"policy": "best"}}"#,
        "labels.policy",
        "one of random, round_robin",
    ),
    (
        r#"{"url": "grpc://a:1", "labels": {"cost": "2"}}"#,
        "labels.cost",
        "give cost beside labels",
    ),
    (
        r#"{"url": "grpc://a:1", "worker_type": "prefill"}"#,
        "worker_type",
        "`regular`",
    ),
    (
        r#"{"url": "grpc://a:1", "colour": "red"}"#,
        "colour",
        "url, labels, priority and cost",
    ),
];

#[tokio::test(start_paused = true)]
async fn what_is_no_worker_is_refused_by_field() {
    let rig = rig([worker()], json!({})).await;
    for (body, param, said) in NO_WORKERS {
        let body = serde_json::from_str(body).unwrap();
        let answer = rig.administer(Method::POST, "/workers", &body).await;
        let error = answer.body_json()["error"].clone();
        let (status, named) = (answer.status.as_u16(), error["param"].as_str());
        assert_eq!((status, named), (400, Some(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(said), "{error}");
    }
    let text = rig.send(
        Method::POST,
        "/workers",
        &[("authorization", "Bearer root")],
        "url".into(),
    );
    text.await.whole().await.assert_error(400, "invalid_body");
    assert_eq!(workers(&rig).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn changes_of_no_worker_and_of_what_cannot_change_are_refused() {
    let rig = rig([worker()], json!({})).await;
    for id in ["9", "x"] {
        for method in [Method::PUT, Method::PATCH, Method::DELETE] {
            let path = format!("/workers/{id}");
            let answer = rig.administer(method, &path, &json!({})).await;
            answer.assert_error(404, "WORKER_NOT_FOUND");
        }
    }
    let path = "/workers/1?drain=soon";
    let drain = rig.administer(Method::DELETE, path, &Value::Null).await;
    assert_eq!(drain.assert_error(400, "invalid_value")["param"], "drain");
    let body = json!({"url": "grpc://worker-1:30001"});
    let other = rig.administer(Method::PATCH, "/workers/1", &body).await;
    assert_eq!(other.assert_error(400, "invalid_value")["param"], "url");
    assert_eq!(workers(&rig).await[0]["status"], "ready");
}

#[tokio::test(start_paused = true)]
async fn only_administrators_change_workers() {
    let ways = [
        (Method::POST, "/workers"),
        (Method::PUT, "/workers/1"),
        (Method::PATCH, "/workers/1"),
        (Method::DELETE, "/workers/1"),
    ];
    for (options, status, code) in [
        (json!({}), 403, "admin_key_required"),
        (json!({"api_key": "root"}), 403, "admin_key_required"),
        (json!({"admin_api_key": "other"}), 401, "invalid_api_key"),
    ] {
        let rig = Rig::with_options([worker()], &options).await;
        for (method, path) in &ways {
            let answer = rig
                .administer(method.clone(), path, &json!({"url": "grpc://worker-1:30001"}))
                .await;
            answer.assert_error(status, code);
        }
    }
    let door = Rig::front_door(worker()).await;
    assert_eq!(
        door.administer(Method::POST, "/workers", &json!({})).await.status,
        403
    );
}

#[tokio::test(start_paused = true)]
async fn what_is_said_of_a_worker_can_change() {
    let rig = rig([worker(), worker()], json!({})).await;
    let path = "/workers/1";
    let body = json!({"labels": {"zone": "a", "rack": "4"}, "priority": 60, "url": "grpc://worker-0:30001"});
    assert_eq!(rig.administer(Method::PATCH, path, &body).await.status, 202);
    let body = json!({"labels": {"rack": null}, "cost": 2});
    assert_eq!(rig.administer(Method::PATCH, path, &body).await.status, 202);
    let one = rig.get(path).await.body_json();
    assert_eq!(
        [
            &one["priority"],
            &one["cost"],
            &one["metadata"]["zone"],
            &one["metadata"]["rack"]
        ],
        [&json!(60), &json!(2.0), &json!("a"), &Value::Null]
    );
    // What the worker told of itself is there as well.
    assert_eq!(one["metadata"]["max_context_length"], "512");
    let body = json!({"labels": {"rack": "5"}});
    assert_eq!(rig.administer(Method::PUT, path, &body).await.status, 202);
    let one = rig.get(path).await.body_json();
    assert_eq!(
        [
            &one["priority"],
            &one["cost"],
            &one["metadata"]["zone"],
            &one["metadata"]["rack"]
        ],
        [&json!(50), &json!(1.0), &Value::Null, &json!("5")]
    );
}

/// B067: deregistering a worker with requests in flight drives its counters negative or turns finished answers into
/// errors.
#[tokio::test(start_paused = true)]
async fn b067_a_worker_that_leaves_ends_its_streams_and_its_successor_counts_for_itself() {
    let mut rig = rig([slow(), slow()], json!({"policy": "round_robin"})).await;
    remove(&rig, "2", "?drain=0").await;
    until_gone(&rig, "2").await;
    let mut early = Vec::new();
    for number in 0..3 {
        early.push(stream(&rig, &format!("early {number}")).await);
    }
    tokio::time::sleep(Duration::from_secs(5)).await;
    let late = [stream(&rig, "late 0").await, stream(&rig, "late 1").await];
    let spare = rig.join(slow());
    let spare_id = add(&rig, spare, json!({})).await;
    rig.until_ready(2).await;
    remove(&rig, "1", "?drain=60").await;
    let draining = &workers(&rig).await[0];
    assert_eq!(
        [&draining["status"], &draining["load"], &draining["is_healthy"]],
        [&json!("draining"), &json!(5), &json!(false)]
    );
    for exchange in early {
        assert_eq!(
            exchange.whole().await.events().last().unwrap()["choices"][0]["finish_reason"],
            "stop"
        );
    }
    // Nothing new goes there.
    assert_eq!(rig.post(CHAT, &chat("new")).await.status, 200);
    assert_eq!(rig.engines[0].counts().requests, 5);
    let [first, second] = late;
    assert_eq!(first.whole().await.status, 200);
    assert_eq!(second.whole().await.status, 200);
    until_gone(&rig, "1").await;
    // Its address again, with streams on what was added, and that removed and added meanwhile.
    let running = [stream(&rig, "a").await, stream(&rig, "b").await];
    remove(&rig, &spare_id, "?drain=60").await;
    let successor = add(&rig, spare, json!({})).await;
    assert_ne!(successor, spare_id);
    rig.until_ready(1).await;
    let loads = |workers: &[Value]| -> Vec<u64> {
        workers
            .iter()
            .map(|worker| worker["load"].as_u64().unwrap())
            .collect()
    };
    assert_eq!(loads(&workers(&rig).await), [2, 0]);
    let own = stream(&rig, "c").await;
    assert_eq!(loads(&workers(&rig).await), [2, 1]);
    for exchange in running.into_iter().chain([own]) {
        assert_eq!(
            exchange.whole().await.events().last().unwrap()["choices"][0]["finish_reason"],
            "stop"
        );
    }
    until_gone(&rig, &spare_id).await;
    // The gateway sees the end of a call after the worker does.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(loads(&workers(&rig).await), [0]);
    rig.shutdown.drain.cancel();
    rig.ended().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn streams_that_outlast_the_time_of_their_worker_end_with_an_error() {
    let endless = worker().script(Script::ending(Outcome::HangAfter { messages: 1 }));
    let rig = rig([endless, worker()], json!({"policy": "round_robin"})).await;
    let mut exchange = stream(&rig, "hi").await;
    exchange.next_piece().await.unwrap();
    let begun = tokio::time::Instant::now();
    remove(&rig, "1", "?drain=3600").await;
    remove(&rig, "1", "?drain=20").await;
    let mut last = String::new();
    while let Some(piece) = exchange.next_piece().await {
        last = piece;
    }
    assert_eq!(begun.elapsed().as_secs(), 20);
    assert!(last.contains("worker_removed"), "{last}");
    until_gone(&rig, "1").await;
    rig.engines[0]
        .wait_until(|record| record.counts.cancelled == 1)
        .await;
    assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_left_of_a_worker_that_went() {
    let telling = || {
        worker().cache(4, 64).control(|name, args| match name {
            "open_session" => Ok(json!({"session_id": args["session_id"]})),
            other => Err(format!("no {other}")),
        })
    };
    let mut rig = rig([worker()], json!({"policy": "round_robin"})).await;
    let pages = "smg_prefix_index_pages";
    rig.post(CHAT, &chat("something to remember for the first worker"))
        .await;
    let (tasks, before) = (rig.tasks.len(), rig.series(pages).await);
    for _ in 0..3 {
        let joined = rig.join(telling());
        let id = add(&rig, joined, json!({"labels": {"policy": "random"}})).await;
        rig.until_ready(2).await;
        for number in 0..8 {
            let body = chat(&format!("{number} of something to remember for the other worker"));
            assert_eq!(rig.post(CHAT, &body).await.status, 200);
        }
        let mut sessions = Vec::new();
        for _ in 0..16 {
            let answer = rig
                .post("/open_session", &json!({"capacity_of_str_len": 10}))
                .await;
            if answer.status == 200 {
                sessions.push(answer.body_json());
            }
        }
        assert!(!sessions.is_empty());
        assert!(rig.tasks.len() > tasks);
        assert_ne!(rig.series(pages).await, before);
        remove(&rig, &id, "").await;
        until_gone(&rig, &id).await;
        for session in sessions {
            let body = json!({"text": "hi", "session_params": {"id": session}});
            rig.post("/generate", &body)
                .await
                .assert_error(410, "session_lost");
        }
        let ended = rig.until(|rig| rig.tasks.len() == tasks);
        tokio::time::timeout(Duration::from_secs(60), ended)
            .await
            .unwrap();
        for name in ["smg_worker_health", "smg_kv_feed_exact"] {
            let start = format!("{name}{{worker=\"grpc://worker-{joined}:");
            let gauges = rig.series(&start).await;
            assert!(gauges[0].ends_with(" 0"), "{gauges:?}");
        }
    }
    // What the first one was sent meanwhile is more.
    remove(&rig, "1", "").await;
    until_gone(&rig, "1").await;
    let left = rig.series(pages).await;
    assert!(left.iter().all(|line| line.ends_with(" 0")), "{left:?}");
    let pool = rig.series("smg_worker_pool_size").await;
    assert!(pool[0].ends_with(" 0"), "{pool:?}");
}

/// B053: after a change of the configuration old workers are still probed and may return.
#[tokio::test(start_paused = true)]
async fn b053_no_request_of_any_kind_reaches_a_worker_that_left_the_list() {
    let mut rig = rig([worker(), worker()], json!({"health_check_interval_secs": 1})).await;
    let joined = rig.join(worker());
    rig.kill(0).await;
    rig.reload(&json!({"worker_urls": [address_of(joined).to_string()], "admin_api_key": "root"}))
        .await;
    until_gone(&rig, "1").await;
    until_gone(&rig, "2").await;
    rig.until_ready(1).await;
    rig.revive(0);
    let counts = |rig: &Rig| [rig.engines[0].counts(), rig.engines[1].counts()];
    let before = counts(&rig);
    tokio::time::sleep(Duration::from_secs(10)).await;
    for _ in 0..10 {
        assert_eq!(rig.post(CHAT, &chat("hi")).await.status, 200);
    }
    assert_eq!(counts(&rig), before);
    assert_eq!(rig.engines[joined].counts().requests, 10);
}

#[tokio::test(start_paused = true)]
async fn a_new_configuration_changes_policies_and_keeps_what_was_added() {
    let mut rig = rig([worker()], json!({"policy": "round_robin"})).await;
    let joined = rig.join(worker());
    let id = add(&rig, joined, json!({})).await;
    rig.until_ready(2).await;
    let chosen = |policy: &str| {
        format!(
            "smg_worker_selection_total{{worker_type=\"regular\",connection_mode=\"grpc\",model=\"{MODEL}\",policy=\"{policy}\"}}"
        )
    };
    rig.post(CHAT, &chat("hi")).await;
    assert_eq!(rig.series(&chosen("round_robin")).await.len(), 1);
    let new = json!({
        "worker_urls": [address_of(0).to_string()],
        "admin_api_key": "root",
        "policy": "random",
        "model_aliases": ["small=demo"],
    });
    rig.reload(&new).await;
    let aliased = with(chat("hi"), json!({"model": "small"}));
    let taken_over = rig.until_async(async |rig| rig.post(CHAT, &aliased).await.status == 200);
    tokio::time::timeout(Duration::from_secs(60), taken_over)
        .await
        .unwrap();
    assert_eq!(rig.series(&chosen("random")).await.len(), 1);
    let left = workers(&rig).await;
    assert_eq!((left.len(), &left[1]["id"]), (2, &json!(id)));
}

// ---------------------------------------------------------------- the file

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("smg-workers-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn options(&self) -> Value {
        json!({"worker_state_file": self.0.join("workers.json"), "admin_api_key": "root"})
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

#[tokio::test(start_paused = true)]
async fn added_workers_survive_a_restart_unless_they_were_removed() {
    let folder = Folder::new();
    let mut first = Rig::with_options([worker()], &folder.options()).await;
    let [kept, gone] = [first.join(worker()), first.join(worker())];
    let id = add(&first, kept, json!({"labels": {"zone": "b"}})).await;
    let other = add(&first, gone, json!({})).await;
    assert_eq!(
        first
            .administer(Method::PATCH, &format!("/workers/{id}"), &json!({"priority": 9}))
            .await
            .status,
        202
    );
    remove(&first, &other, "?drain=0").await;
    first.shutdown.drain.cancel();
    first.ended().await.unwrap();

    let options = with(
        folder.options(),
        json!({"worker_urls": [address_of(0).to_string()]}),
    );
    let second = Rig::unready([worker(), worker()], &options).await;
    second.until_ready(2).await;
    let told = workers(&second).await;
    let urls: Vec<&str> = told
        .iter()
        .map(|worker| worker["url"].as_str().unwrap())
        .collect();
    assert_eq!(urls, ["grpc://worker-0:30001", "grpc://worker-1:30001"]);
    assert_eq!(
        (&told[1]["priority"], &told[1]["metadata"]["zone"]),
        (&json!(9), &json!("b"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_state_that_cannot_be_read_or_written_is_told_and_changes_nothing() {
    let folder = Folder::new();
    let rig = Rig::with_options([worker()], &folder.options()).await;
    std::fs::remove_dir_all(&folder.0).unwrap();
    let answer = rig
        .administer(Method::POST, "/workers", &json!({"url": "grpc://worker-1:30001"}))
        .await;
    let error = answer.assert_error(500, "state_not_saved");
    let message = error["message"].as_str().unwrap();
    assert!(
        message.contains("nothing was changed: --worker-state-file"),
        "{message}"
    );
    assert_eq!(workers(&rig).await.len(), 1);

    let folder = Folder::new();
    std::fs::write(folder.0.join("workers.json"), "[]").unwrap();
    let error = Rig::refused(&folder.options()).await.to_string();
    assert!(
        error.starts_with("--worker-state-file ") && error.contains("is no list of workers"),
        "{error}"
    );
}
