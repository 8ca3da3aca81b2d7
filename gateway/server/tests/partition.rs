//! The whole gateway on simulated sockets: a worker behind a partition is left, and taken back.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

mod common;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use common::{MODEL, chat, tokenizer, worker};
use futures::{FutureExt, future::BoxFuture};
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use smg::{Binder, Environment, Io, Listener, Shutdown};
use smg_engine_client::{Address, BoxedIo, Connector};
use smg_simulator::Script;
use tokio_util::task::TaskTracker;
use turmoil::net::{TcpListener, TcpStream};

const WORKER_PORT: u16 = 30001;
const HTTP_PORT: u16 = 30000;

struct SimulatedConnector;

struct SimulatedBinder;

struct SimulatedListener(TcpListener);

impl Connector for SimulatedConnector {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<BoxedIo>> {
        let Address::Tcp { host, port } = address.clone() else {
            unreachable!("the workers have host names")
        };
        async move { Ok(Box::new(TcpStream::connect((host.as_str(), port)).await?) as BoxedIo) }.boxed()
    }
}

impl Binder for SimulatedBinder {
    fn bind(&self, _host: &str, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        async move {
            let listener = TcpListener::bind(("0.0.0.0", port)).await?;
            Ok(Box::new(SimulatedListener(listener)) as Box<dyn Listener>)
        }
        .boxed()
    }
}

impl Listener for SimulatedListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        async { Ok(Box::new(self.0.accept().await?.0) as Box<dyn Io>) }.boxed()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

async fn engine(says: &'static str) -> turmoil::Result {
    let engine = worker().script(Script::fixed(tokenizer::ids(says))).build();
    let listener = TcpListener::bind(("0.0.0.0", WORKER_PORT)).await?;
    let incoming = futures::stream::unfold(listener, |listener| async move {
        let accepted = listener.accept().await.map(|(stream, _peer)| stream);
        Some((accepted, listener))
    });
    engine.serve(incoming, std::future::pending()).await?;
    Ok(())
}

async fn gateway() -> turmoil::Result {
    let options = json!({
        "worker_urls": ["grpc://worker-a:30001", "grpc://worker-b:30001"],
        "policy": "round_robin",
        "health_check_interval_secs": 1,
        "health_check_timeout_secs": 1,
    });
    let config = smg::config::from_map(options.as_object().unwrap())?;
    let env = Environment {
        binder: Arc::new(SimulatedBinder),
        connector: Arc::new(SimulatedConnector),
        shutdown: Shutdown::default(),
        reloads: tokio::sync::mpsc::channel(1).1,
        tasks: TaskTracker::new(),
        on_listening: Box::new(|_| ()),
    };
    smg::serve(config, env).await?;
    Ok(())
}

async fn ask(method: &str, path: &str, body: Value) -> turmoil::Result<(u16, Value)> {
    let io = TcpStream::connect(("gateway", HTTP_PORT)).await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", "gateway")
        .header("content-type", "application/json")
        .body(Full::new(Bytes::from(body.to_string())))?;
    let exchange = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await?.to_bytes();
        turmoil::Result::Ok((status, serde_json::from_slice(&body)?))
    };
    tokio::select! {
        answer = exchange => answer,
        ended = connection => Err(format!("the connection ended first: {ended:?}").into()),
    }
}

async fn ready_workers() -> turmoil::Result<u64> {
    let (_, readiness) = ask("GET", "/readiness", Value::Null).await?;
    Ok(readiness["healthy_workers"].as_u64().unwrap_or(0))
}

async fn until_ready(num_workers: u64) -> turmoil::Result {
    while ready_workers().await? != num_workers {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

async fn said() -> turmoil::Result<String> {
    let (status, answer) = ask("POST", "/v1/chat/completions", chat("hi")).await?;
    assert_eq!((status, &answer["model"]), (200, &json!(MODEL)), "{answer}");
    Ok(answer["choices"][0]["message"]["content"]
        .as_str()
        .unwrap()
        .to_owned())
}

#[test]
fn a_partitioned_worker_is_left_and_taken_back() -> turmoil::Result {
    let mut sim = turmoil::Builder::new()
        .simulation_duration(Duration::from_secs(300))
        .tick_duration(Duration::from_millis(5))
        .build();
    sim.host("worker-a", || engine("from a"));
    sim.host("worker-b", || engine("from b"));
    sim.host("gateway", gateway);
    sim.client("client", async {
        until_ready(2).await?;
        let first = [said().await?, said().await?];
        assert!(
            first.contains(&"from a".to_owned()) && first.contains(&"from b".to_owned()),
            "{first:?}"
        );

        turmoil::partition("gateway", "worker-a");
        until_ready(1).await?;
        for _ in 0..4 {
            assert_eq!(said().await?, "from b");
        }

        turmoil::repair("gateway", "worker-a");
        until_ready(2).await?;
        let again = [said().await?, said().await?];
        assert!(again.contains(&"from a".to_owned()), "{again:?}");
        Ok(())
    });
    sim.run()
}
