//! Operations on all workers, and who may ask for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use bytes::Bytes;
use common::{Answer, Rig, worker};
use http::Method;
use serde_json::{Value, json};
use smg_simulator::{Outcome, Script, SimulatedEngineBuilder};

const STORAGE: &str = "/hicache/storage-backend";

fn willing() -> SimulatedEngineBuilder {
    worker().control(|name, args| Ok(json!({"name": name, "args": args})))
}

fn refusing() -> SimulatedEngineBuilder {
    worker().control(|_, _| Err("there is no storage".to_owned()))
}

async fn ask(rig: &Rig, method: Method, path: &str, key: &str, body: &Value) -> Answer {
    let value = format!("Bearer {key}");
    let headers = if key.is_empty() {
        vec![]
    } else {
        vec![("authorization", value.as_str())]
    };
    let body = if body.is_null() {
        Bytes::new()
    } else {
        Bytes::from(body.to_string())
    };
    rig.send(method, path, &headers, body).await.whole().await
}

#[tokio::test(start_paused = true)]
async fn pausing_and_continuing_reach_every_worker() {
    let rig = Rig::start([willing(), willing()]).await;
    let paused = rig.post("/pause_generation", &json!({"mode": "retract"})).await;
    let said = json!({"message": "Generation paused successfully.", "status": "ok"});
    assert_eq!((paused.status.as_u16(), paused.body_json()), (200, said));
    let resumed = rig
        .post("/continue_generation", &json!({"torch_empty_cache": true}))
        .await;
    let said = json!({"message": "Generation continued successfully.", "status": "ok"});
    assert_eq!((resumed.status.as_u16(), resumed.body_json()), (200, said));
    // A body is not needed, and null is absent.
    assert_eq!(
        ask(&rig, Method::POST, "/pause_generation", "", &Value::Null)
            .await
            .status,
        200
    );
    assert_eq!(
        rig.post("/continue_generation", &json!({"torch_empty_cache": null}))
            .await
            .status,
        200
    );
    for engine in &rig.engines {
        let expected = [
            ("pause_generation", json!({"mode": "retract"})),
            ("continue_generation", json!({"torch_empty_cache": true})),
            ("pause_generation", json!({})),
            ("continue_generation", json!({})),
        ];
        assert_eq!(
            engine.record().operations,
            expected.map(|(name, args)| (name.to_owned(), args))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_wrong_body_is_refused_by_the_name_of_its_field() {
    let rig = Rig::start([willing()]).await;
    for (path, body, param, words) in [
        (
            "/pause_generation",
            json!({"mode": "soon"}),
            "mode",
            "one of abort, retract, in_place, got \"soon\"",
        ),
        ("/pause_generation", json!({"mode": 1}), "mode", "got 1"),
        ("/pause_generation", json!({"wait": true}), "wait", "takes mode"),
        (
            "/continue_generation",
            json!({"torch_empty_cache": 1}),
            "torch_empty_cache",
            "true or false",
        ),
    ] {
        let answer = rig.post(path, &body).await;
        let error = answer.body_json()["error"].clone();
        assert_eq!(
            (answer.status.as_u16(), error["param"].as_str()),
            (400, Some(param)),
            "{error}"
        );
        assert!(error["message"].as_str().unwrap().contains(words), "{error}");
    }
    rig.post("/pause_generation", &json!([]))
        .await
        .assert_error(400, "invalid_body");
    rig.get("/pause_generation")
        .await
        .assert_error(405, "method_not_allowed");
    assert_eq!(rig.engines[0].counts().operations, 0);
}

#[tokio::test(start_paused = true)]
async fn what_fails_on_some_workers_is_told_by_worker() {
    let rig = Rig::start([willing(), refusing()]).await;
    let part = rig.post("/pause_generation", &json!({})).await;
    assert_eq!(part.status, 206);
    let body = part.body_json();
    assert_eq!(
        (&body["status"], &body["successful"], &body["failed"]),
        (
            &json!("partial_success"),
            &json!(["grpc://worker-0:30001"]),
            &json!([{"worker": "grpc://worker-1:30001", "error": "there is no storage"}])
        )
    );
    let none = Rig::start([refusing(), refusing()])
        .await
        .post("/pause_generation", &json!({}))
        .await;
    assert_eq!(
        (none.status.as_u16(), &none.body_json()["status"]),
        (400, &json!("failed"))
    );
    let one = Rig::start([refusing()]).await;
    let error = one
        .post("/pause_generation", &json!({}))
        .await
        .assert_error(400, "invalid_value");
    assert_eq!(error["message"], "there is no storage");
    let foreign = Rig::start([worker().without_engine_service()]).await;
    foreign
        .post("/pause_generation", &json!({}))
        .await
        .assert_error(501, "not_implemented");
    let unready = Rig::unready(
        [willing().health(smg_simulator::HealthScript::NotReady("loading".into()))],
        &json!({}),
    )
    .await;
    unready
        .post("/pause_generation", &json!({}))
        .await
        .assert_error(503, "no_available_workers");
}

#[tokio::test(start_paused = true)]
async fn the_storage_routes_are_closed_without_an_admin_key() {
    for options in [json!({}), json!({"api_key": "user"})] {
        let rig = Rig::with_options([willing()], &options).await;
        for (method, path) in [
            (Method::GET, STORAGE),
            (Method::PUT, STORAGE),
            (Method::DELETE, STORAGE),
            (Method::POST, "/hicache/storage-backend/clear"),
        ] {
            let answer = ask(&rig, method, path, "user", &json!({})).await;
            let error = answer.assert_error(403, "admin_key_required");
            assert!(error["message"].as_str().unwrap().contains("--admin-api-key"));
        }
        assert_eq!(rig.engines[0].counts().operations, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_storage_operations_carry_their_arguments_and_results() {
    let rig = Rig::with_options([willing()], &json!({"admin_api_key": "root"})).await;
    let attach = json!({"hicache_storage_backend": "file", "hicache_write_policy": "write_through"});
    for (method, path, body, name) in [
        (Method::GET, STORAGE, Value::Null, "hicache_storage_status"),
        (Method::PUT, STORAGE, attach.clone(), "hicache_storage_attach"),
        (Method::DELETE, STORAGE, Value::Null, "hicache_storage_detach"),
        (
            Method::POST,
            "/hicache/storage-backend/clear",
            Value::Null,
            "hicache_storage_clear",
        ),
    ] {
        ask(&rig, method.clone(), path, "", &body)
            .await
            .assert_error(401, "invalid_api_key");
        let answer = ask(&rig, method, path, "root", &body).await;
        let args = if body.is_null() { json!({}) } else { body };
        assert_eq!(answer.body_json(), json!({"name": name, "args": args}));
    }
    let empty = ask(&rig, Method::PUT, STORAGE, "root", &json!({})).await;
    assert_eq!(
        empty.assert_error(400, "missing_field")["param"],
        "hicache_storage_backend"
    );
    let two = Rig::with_options([willing(), willing()], &json!({"admin_api_key": "root"})).await;
    let status = ask(&two, Method::GET, STORAGE, "root", &Value::Null)
        .await
        .body_json();
    assert_eq!(status["workers"][1]["worker"], "grpc://worker-1:30001");
    assert_eq!(status["workers"][1]["result"]["name"], "hicache_storage_status");
}

#[tokio::test(start_paused = true)]
async fn an_admin_key_takes_the_place_of_the_other_one_where_administrators_work() {
    let rig = Rig::with_options([willing()], &json!({"api_key": "user", "admin_api_key": "root"})).await;
    let abort = json!({"abort_all": true});
    for (path, body) in [
        ("/pause_generation", json!({})),
        ("/flush_cache", json!({})),
        ("/abort_request", abort),
    ] {
        for (key, status) in [("", 401), ("user", 401), ("root", 200)] {
            let answer = ask(&rig, Method::POST, path, key, &body).await;
            assert_eq!(answer.status, status, "{path} {key}");
        }
    }
    for (key, status) in [("", 401), ("root", 401), ("user", 200)] {
        assert_eq!(
            ask(&rig, Method::GET, "/v1/models", key, &Value::Null)
                .await
                .status,
            status,
            "{key}"
        );
        let body = json!({"capacity_of_str_len": 1});
        assert_eq!(
            ask(&rig, Method::POST, "/open_session", key, &body).await.status,
            status,
            "{key}"
        );
    }
    let open = Rig::with_options([willing()], &json!({"admin_api_key": "root"})).await;
    assert_eq!(open.get("/v1/models").await.status, 200);
    open.post("/flush_cache", &json!({}))
        .await
        .assert_error(401, "invalid_api_key");
}

#[tokio::test(start_paused = true)]
async fn the_id_of_a_batch_ends_all_of_it() {
    let script = Script::ending(Outcome::HangAfter { messages: 1 });
    let rig = Rig::start([worker().script(script)]).await;
    let body = json!({"text": ["a", "b"], "rid": "job"});
    let batch = rig.post("/generate", &body);
    let abort = async {
        rig.engines[0]
            .wait_until(|record| record.counts.requests == 2)
            .await;
        let unknown = rig
            .post("/abort_request", &json!({"rid": "jo"}))
            .await
            .body_json();
        assert_eq!(unknown["num_aborted"], 0);
        rig.post("/abort_request", &json!({"rid": "job"}))
            .await
            .body_json()
    };
    let (answers, aborted) = tokio::join!(batch, abort);
    assert_eq!(aborted["num_aborted"], 2);
    for answer in answers.body_json().as_array().unwrap() {
        assert_eq!(answer["meta_info"]["finish_reason"]["type"], "abort");
    }
}
