//! What a worker tells about itself, its tokenizer files, its operations, and its connection.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code")]

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use common::{Rig, address, read_to_end, spec};
use serde_json::{Value, json};
use smg_engine_client::{Address, EngineClient, EngineError, StatusClass, SystemConnector};
use smg_simulator::proto::scheduler::{GetModelInfoResponse, MemoryMetrics, SchedulerLoad};
use smg_simulator::{
    HealthScript, Outcome, Script, SimulatedEngine, SimulatedEngineBuilder, default_card, zip_archive,
};
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::{TcpListenerStream, UnixListenerStream};
use tokio_util::task::TaskTracker;

fn builder() -> SimulatedEngineBuilder {
    SimulatedEngine::builder()
}

#[tokio::test(start_paused = true)]
async fn health_tells_ready_loading_and_broken_apart() {
    let rig = Rig::start(builder());
    assert!(rig.client.health().await.unwrap().healthy);
    rig.engine
        .set_health(HealthScript::Unhealthy("the scheduler is stuck".to_owned()));
    let health = rig.client.health().await.unwrap();
    assert_eq!(
        (health.healthy, health.message.as_str()),
        (false, "the scheduler is stuck")
    );
    rig.engine
        .set_health(HealthScript::NotReady("loading weights".to_owned()));
    let error = rig.client.health().await.unwrap_err();
    assert_eq!(
        (error.status_class(), error.message().as_str()),
        (StatusClass::Unavailable, "loading weights")
    );
}

#[tokio::test(start_paused = true)]
async fn a_silent_worker_runs_into_the_deadline() {
    let rig = Rig::start(builder().health(HealthScript::Silent));
    let error = rig.client.health().await.unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::Deadline {
                operation: "HealthCheck",
                ..
            }
        ),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_slow_worker_is_waited_for() {
    let rig = Rig::start(builder().health(HealthScript::Slow(Duration::from_secs(3))));
    assert!(rig.client.health().await.unwrap().healthy);
}

#[tokio::test(start_paused = true)]
async fn the_model_card_is_read() {
    let card = GetModelInfoResponse {
        default_sampling_params_json: r#"{"temperature": 0.6, "top_k": 20}"#.to_owned(),
        ..default_card("demo")
    };
    let rig = Rig::start(builder().card(card));
    let info = rig.client.model_info().await.unwrap();
    assert_eq!((info.model_id(), info.max_context_length), ("demo", 8192));
    assert_eq!(info.eos_token_ids, [2]);
    assert_eq!(
        Value::Object(info.default_sampling_params),
        json!({"temperature": 0.6, "top_k": 20})
    );
}

#[tokio::test(start_paused = true)]
async fn a_card_with_broken_json_is_a_violation() {
    let card = GetModelInfoResponse {
        default_sampling_params_json: "[1]".to_owned(),
        ..default_card("demo")
    };
    let rig = Rig::start(builder().card(card));
    let error = rig.client.model_info().await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("default_sampling_params_json holds no JSON object"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn server_info_is_flat_with_whole_numbers() {
    let rig = Rig::start(builder().server_args(json!({"tp_size": 2, "mem_fraction_static": 0.5})));
    let info = rig.client.server_info().await.unwrap();
    assert_eq!(info["tp_size"], json!(2));
    assert_eq!(info["mem_fraction_static"], json!(0.5));
    assert_eq!(info["version"], json!("simulated"));
    assert_eq!(info["active_requests"], json!(0));
}

#[tokio::test(start_paused = true)]
async fn loads_follow_what_runs_or_what_is_set() {
    let rig = Rig::start(builder().script(Script::ending(Outcome::HangAfter { messages: 1 })));
    let mut stream = rig.generate(spec(&[1])).await;
    common::next_tokens(&mut stream).await;
    assert_eq!(rig.client.loads(&["all"]).await.unwrap()[0].num_running_reqs, 1);
    rig.engine.set_load(SchedulerLoad {
        num_waiting_reqs: 3,
        memory: Some(MemoryMetrics {
            token_capacity: 512,
            ..MemoryMetrics::default()
        }),
        ..SchedulerLoad::default()
    });
    let [load] = rig.client.loads(&["all"]).await.unwrap().try_into().unwrap();
    assert_eq!(
        (load.num_waiting_reqs, load.memory.unwrap().token_capacity),
        (3, 512)
    );
}

#[tokio::test(start_paused = true)]
async fn a_busy_worker_says_why_it_does_not_flush() {
    let rig = Rig::start(builder().script(Script::ending(Outcome::HangAfter { messages: 1 })));
    assert_eq!(
        rig.client.flush_cache(0.0).await.unwrap(),
        (true, "flushed".to_owned())
    );
    let mut stream = rig.generate(spec(&[1])).await;
    common::next_tokens(&mut stream).await;
    assert_eq!(
        rig.client.flush_cache(1.5).await.unwrap(),
        (false, "1 requests are running".to_owned())
    );
}

#[tokio::test]
async fn tokenizer_files_arrive_unchanged() {
    let large: Vec<u8> = (0..900_000u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let files = BTreeMap::from([
        ("tokenizer.json".to_owned(), large),
        ("config.json".to_owned(), b"{}".to_vec()),
        ("chat_template.jinja".to_owned(), Vec::new()),
    ]);
    let rig = Rig::start(builder().tokenizer_files(&files).unwrap());
    assert_eq!(rig.client.tokenizer_files().await.unwrap(), files);
}

#[tokio::test]
async fn a_bundle_with_another_digest_is_refused() {
    let archive = zip_archive([("tokenizer.json", b"{}".as_slice())]).unwrap();
    for (digest, complaint) in [
        ("00".repeat(32), "announced was"),
        (String::new(), "carries no sha256"),
    ] {
        let rig = Rig::start(builder().tokenizer_archive(archive.clone(), Some(digest)));
        let error = rig.client.tokenizer_files().await.unwrap_err();
        assert!(
            matches!(
                error,
                EngineError::Protocol {
                    operation: "GetTokenizer",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains(complaint), "{error}");
    }
}

#[tokio::test]
async fn a_bundle_with_path_tricks_is_refused() {
    for name in [
        "../evil",
        "/etc/passwd",
        "sub/tokenizer.json",
        "..\\evil",
        "C:evil",
        "..",
        "sub/",
    ] {
        let archive = zip_archive([("config.json", b"{}".as_slice()), (name, b"x")]).unwrap();
        let rig = Rig::start(builder().tokenizer_archive(archive, None));
        let error = rig.client.tokenizer_files().await.unwrap_err();
        assert!(
            error.to_string().contains("no plain file at the archive's root"),
            "{name}: {error}"
        );
    }
}

#[tokio::test]
async fn a_worker_without_a_bundle_says_so() {
    let error = Rig::start(builder()).client.tokenizer_files().await.unwrap_err();
    assert_eq!(error.status_class(), StatusClass::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn operations_take_and_give_json() {
    let rig = Rig::start(builder().control(|name, args| match name {
        "echo" => Ok(json!({"args": args})),
        _ => Err(format!("{name:?} is unknown, allowed is echo")),
    }));
    let answer = rig.client.control("echo", &json!({"level": 2})).await.unwrap();
    assert_eq!(answer, json!({"args": {"level": 2}}));
    assert_eq!(
        rig.client.control("echo", &Value::Null).await.unwrap(),
        json!({"args": {}})
    );
    let error = rig.client.control("ech", &Value::Null).await.unwrap_err();
    assert_eq!(error.status_class(), StatusClass::InvalidArgument);
    assert_eq!(error.message(), "\"ech\" is unknown, allowed is echo");
}

#[tokio::test(start_paused = true)]
async fn another_protocol_version_is_named() {
    let rig = Rig::start(builder().control(|_, _| Ok(json!({}))).control_version(2));
    let error = rig.client.control("metrics", &Value::Null).await.unwrap_err();
    assert!(
        matches!(
            error,
            EngineError::ProtocolVersion {
                ours: 1,
                theirs: 2,
                ..
            }
        ),
        "{error}"
    );
    assert!(
        error.to_string().contains("speaks version 2") && error.to_string().contains("version 1"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn foreign_engines_lack_the_operations() {
    let rig = Rig::start(builder().without_engine_service());
    let error = rig.client.control("metrics", &Value::Null).await.unwrap_err();
    assert_eq!(error.status_class(), StatusClass::Unimplemented);
}

#[tokio::test(start_paused = true)]
async fn a_refused_connection_is_told_apart() {
    let rig = Rig::without_server(builder());
    let error = read_to_end(rig.generate(spec(&[1])).await).await.error.unwrap();
    assert!(matches!(error, EngineError::Connect { .. }), "{error}");
    assert!(
        error
            .to_string()
            .contains("cannot connect to worker grpc://worker:30001"),
        "{error}"
    );
    assert!(error.retryable());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_never_comes_about_times_out() {
    let rig = Rig::without_server(builder());
    rig.network.swallow(address());
    let error = rig.client.health().await.unwrap_err();
    assert!(error.to_string().contains("no connection within 5 s"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn the_client_finds_a_restarted_worker() {
    let mut rig = Rig::start(builder());
    rig.client.health().await.unwrap();
    rig.crash().await;
    assert_eq!(
        rig.client.health().await.unwrap_err().status_class(),
        StatusClass::Unavailable
    );
    rig.serve();
    assert!(rig.client.health().await.unwrap().healthy);
    let told = read_to_end(rig.generate(spec(&[1, 2])).await).await;
    assert_eq!(told.token_ids(0), [1, 2]);
}

#[tokio::test]
async fn tcp_sockets_serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let worker = Address::Tcp {
        host: "127.0.0.1".to_owned(),
        port: listener.local_addr().unwrap().port(),
    };
    let (engine, tasks) = (builder().build(), TaskTracker::new());
    let server = engine.serve(TcpListenerStream::new(listener), std::future::pending());
    let client = EngineClient::new(worker, Arc::new(SystemConnector), tasks);
    tokio::select! {
        outcome = server => panic!("the server ended: {outcome:?}"),
        told = async { read_to_end(client.generate(spec(&[1, 2])).await.unwrap()).await } => {
            assert_eq!(told.token_ids(0), [1, 2]);
        }
    }
}

#[tokio::test]
async fn unix_sockets_serve() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("worker.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let worker: Address = format!("unix://{}", path.display()).parse().unwrap();
    let (engine, tasks) = (builder().build(), TaskTracker::new());
    let server = engine.serve(UnixListenerStream::new(listener), std::future::pending());
    let client = EngineClient::new(worker, Arc::new(SystemConnector), tasks);
    tokio::select! {
        outcome = server => panic!("the server ended: {outcome:?}"),
        told = async { read_to_end(client.generate(spec(&[1, 2])).await.unwrap()).await } => {
            assert_eq!(told.token_ids(0), [1, 2]);
        }
    }
}
