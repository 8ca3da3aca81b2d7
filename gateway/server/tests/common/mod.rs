//! A whole gateway in front of scripted workers, on a network inside the process and under a paused clock.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod tokenizer;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use smg::{Binder, Environment, Io, Listener, ServeError, Shutdown};
use smg_engine_client::{Address, BoxedIo, Connector};
use smg_simulator::{
    MemoryListener, MemoryNetwork, SimulatedEngine, SimulatedEngineBuilder, default_card,
    proto::scheduler::GetModelInfoResponse,
};
use tokio::{
    sync::{mpsc, oneshot},
    task::AbortHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub const MODEL: &str = "demo";
pub const CONTEXT: u32 = 512;

/// A gateway and its workers.
pub struct Rig {
    pub engines: Vec<SimulatedEngine>,
    pub network: MemoryNetwork,
    pub shutdown: Shutdown,
    pub tasks: TaskTracker,
    reloads: mpsc::Sender<Box<smg::config::GatewayConfig>>,
    addresses: Vec<Address>,
    ended: Option<oneshot::Receiver<Result<(), ServeError>>>,
    servers: Mutex<Vec<Server>>,
    background: TaskTracker,
}

#[derive(Clone)]
struct Server {
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// A model with the byte tokenizer.
pub fn card(model: &str) -> GetModelInfoResponse {
    GetModelInfoResponse {
        max_context_length: CONTEXT as i32,
        vocab_size: 258,
        eos_token_ids: vec![tokenizer::EOS as i32],
        ..default_card(model)
    }
}

/// When the first process of a worker started, in seconds since the epoch.
pub const FIRST_START: i64 = 1_700_000_000;

/// A ready worker that serves [`MODEL`] with the byte tokenizer.
pub fn worker() -> SimulatedEngineBuilder {
    SimulatedEngine::builder()
        .card(card(MODEL))
        .start_time(FIRST_START)
        .tokenizer_files(&tokenizer::files())
        .unwrap()
}

pub fn address_of(worker: usize) -> Address {
    format!("grpc://worker-{worker}:30001").parse().unwrap()
}

impl Rig {
    /// Starts workers and a gateway with default options, and waits until it is ready.
    pub async fn start(workers: impl IntoIterator<Item = SimulatedEngineBuilder>) -> Self {
        Self::with_options(workers, &json!({})).await
    }

    pub async fn with_options(
        workers: impl IntoIterator<Item = SimulatedEngineBuilder>,
        options: &Value,
    ) -> Self {
        let rig = Self::unready(workers, options).await;
        rig.until_ready(rig.engines.len()).await;
        rig
    }

    /// The same without waiting for the workers.
    pub async fn unready(workers: impl IntoIterator<Item = SimulatedEngineBuilder>, options: &Value) -> Self {
        let engines: Vec<SimulatedEngine> = workers.into_iter().map(SimulatedEngineBuilder::build).collect();
        let addresses = (0..engines.len()).map(address_of).collect();
        Self::launch(engines, addresses, options).await
    }

    /// The front door of one worker behind a Unix socket. Not waited for.
    pub async fn front_door(worker: SimulatedEngineBuilder) -> Self {
        let address = Address::Unix("/run/worker.sock".into());
        Self::launch(vec![worker.build()], vec![address], &json!({})).await
    }

    async fn launch(engines: Vec<SimulatedEngine>, addresses: Vec<Address>, options: &Value) -> Self {
        let network = MemoryNetwork::new();
        let urls: Vec<String> = addresses.iter().map(Address::to_string).collect();
        let mut config = Map::from_iter([("worker_urls".to_owned(), json!(urls))]);
        config.extend(options.as_object().unwrap().clone());
        let shutdown = Shutdown::default();
        let (listening, is_listening) = oneshot::channel();
        let (reloads, changed) = mpsc::channel(1);
        let tasks = TaskTracker::new();
        let env = Environment {
            binder: Arc::new(MemoryBinder(network.clone())),
            connector: Arc::new(network.clone()),
            shutdown: shutdown.clone(),
            reloads: changed,
            tasks: tasks.clone(),
            on_listening: Box::new(|told| listening.send(told).unwrap()),
        };
        let config = smg::config::from_map(&config).unwrap();
        let (done, ended) = oneshot::channel();
        let background = TaskTracker::new();
        let ended = Some(ended);
        let rig = Self {
            engines,
            network,
            shutdown,
            tasks,
            reloads,
            addresses,
            ended,
            servers: Mutex::default(),
            background,
        };
        for worker in 0..rig.engines.len() {
            let server = rig.serve(worker);
            rig.servers.lock().push(server);
        }
        rig.background.spawn(async move {
            // A test that is not interested in the end has dropped the receiver.
            drop(done.send(smg::serve(config, env).await));
        });
        is_listening.await.unwrap();
        rig
    }

    fn serve(&self, worker: usize) -> Server {
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (engine, listener) = (
            self.engines[worker].clone(),
            self.network.listen(self.addresses[worker].clone()),
        );
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(async move { engine.serve(listener, stopped).await.unwrap() });
        Server { stop, tasks }
    }

    /// Starts a worker that the gateway does not know, and returns its number.
    pub fn join(&mut self, worker: SimulatedEngineBuilder) -> usize {
        let number = self.engines.len();
        self.engines.push(worker.build());
        self.addresses.push(address_of(number));
        let server = self.serve(number);
        self.servers.lock().push(server);
        number
    }

    /// The configuration is now made of these options alone.
    pub async fn reload(&self, options: &Value) {
        let config = smg::config::from_map(options.as_object().unwrap()).unwrap();
        self.reloads.send(Box::new(config)).await.unwrap();
    }

    /// Why a gateway with these options does not start.
    pub async fn refused(options: &Value) -> ServeError {
        let network = MemoryNetwork::new();
        let env = Environment {
            binder: Arc::new(MemoryBinder(network.clone())),
            connector: Arc::new(network),
            shutdown: Shutdown::default(),
            reloads: mpsc::channel(1).1,
            tasks: TaskTracker::new(),
            on_listening: Box::new(|_| panic!("it listens")),
        };
        let config = smg::config::from_map(options.as_object().unwrap()).unwrap();
        smg::serve(config, env).await.unwrap_err()
    }

    /// The worker's process dies.
    pub async fn kill(&self, worker: usize) {
        let server = self.servers.lock()[worker].clone();
        server.stop.cancel();
        self.engines[worker].drop_connections();
        server.tasks.close();
        server.tasks.wait().await;
    }

    /// The process that was cut off answers at the worker's address again.
    pub fn revive(&self, worker: usize) {
        let server = self.serve(worker);
        self.servers.lock()[worker] = server;
    }

    /// Another process answers at the worker's address.
    pub fn restart(&self, worker: usize) {
        self.engines[worker].set_start_time(FIRST_START + 1);
        self.revive(worker);
    }

    /// Virtual time passes until so many workers are ready.
    pub async fn until_ready(&self, num_workers: usize) {
        loop {
            let answer = self.get("/readiness").await;
            let ready = answer.body_json()["healthy_workers"].as_u64().unwrap_or(0);
            if ready == num_workers as u64 {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Virtual time passes until a condition holds.
    pub async fn until(&self, mut holds: impl FnMut(&Self) -> bool) {
        while !holds(self) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The same for a condition that has to be asked for.
    pub async fn until_async(&self, mut holds: impl AsyncFnMut(&Self) -> bool) {
        while !holds(self).await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// The worker that got the only request there was.
    pub fn only_asked(&self) -> usize {
        let mut engines = self.engines.iter();
        engines.position(|engine| engine.counts().requests == 1).unwrap()
    }

    /// The result of `serve`, once it returns.
    pub async fn ended(&mut self) -> Result<(), ServeError> {
        self.ended.take().unwrap().await.unwrap()
    }

    // ------------------------------------------------------------ HTTP

    pub async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Bytes::new())
            .await
            .whole()
            .await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.open(path, body).await.whole().await
    }

    /// Sends JSON and returns when the head of the answer is there.
    pub async fn open(&self, path: &str, body: &Value) -> Exchange {
        let headers = [("content-type", "application/json")];
        self.send(Method::POST, path, &headers, Bytes::from(body.to_string()))
            .await
    }

    pub async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Exchange {
        let (mut sender, connection) = self.connect().await;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "gateway");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = sender
            .send_request(request.body(Full::new(body)).unwrap())
            .await
            .unwrap();
        Exchange { response, connection }
    }

    /// Asks as an administrator whose key is `root`.
    pub async fn administer(&self, method: Method, path: &str, body: &Value) -> Answer {
        let headers = [
            ("authorization", "Bearer root"),
            ("content-type", "application/json"),
        ];
        let body = match body {
            Value::Null => Bytes::new(),
            body => Bytes::from(body.to_string()),
        };
        self.send(method, path, &headers, body).await.whole().await
    }

    /// Lines of the metrics that begin so.
    pub async fn series(&self, start: &str) -> Vec<String> {
        let metrics = self.get("/metrics").await;
        let lines = metrics.text().lines().filter(|line| line.starts_with(start));
        lines.map(str::to_owned).collect()
    }

    /// A connection on which a test speaks for itself.
    pub async fn raw(&self) -> BoxedIo {
        self.network.connect(&gateway()).await.unwrap()
    }

    async fn connect(&self) -> (hyper::client::conn::http1::SendRequest<Full<Bytes>>, Connection) {
        let io = self.raw().await;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io))
            .await
            .unwrap();
        let task = self.background.spawn(async move {
            // Connections that a test cuts end in an error.
            drop(connection.await);
        });
        (sender, Connection(task.abort_handle()))
    }
}

/// Closes the client's socket when dropped.
pub struct Connection(AbortHandle);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer on its way.
pub struct Exchange {
    response: hyper::Response<Incoming>,
    connection: Connection,
}

impl Exchange {
    pub fn status(&self) -> StatusCode {
        self.response.status()
    }

    pub async fn whole(self) -> Answer {
        let (head, body) = self.response.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        drop(self.connection);
        Answer {
            status: head.status,
            headers: head.headers,
            body,
        }
    }

    /// The next piece of a streamed answer.
    pub async fn next_piece(&mut self) -> Option<String> {
        let frame = self.response.body_mut().frame().await?.unwrap();
        Some(String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap())
    }
}

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

impl Answer {
    pub fn body_json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.body))
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The payloads of the events of a stream, which must end in `[DONE]`.
    pub fn events(&self) -> Vec<Value> {
        assert_eq!(self.headers["content-type"], "text/event-stream", "{self:?}");
        let text = self
            .text()
            .strip_suffix("data: [DONE]\n\n")
            .expect("a stream ends in [DONE]");
        let events = text.split_terminator("\n\n");
        events
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }

    #[track_caller]
    pub fn assert_error(&self, status: u16, code: &str) -> Value {
        let body = self.body_json();
        assert_eq!(
            (self.status.as_u16(), body["error"]["code"].as_str()),
            (status, Some(code)),
            "{body}"
        );
        assert_eq!(self.headers["x-smg-error-code"], code);
        assert!(!body["error"]["message"].as_str().unwrap().is_empty());
        body["error"].clone()
    }
}

// ---------------------------------------------------------------- the gateway's listener

fn gateway() -> Address {
    Address::Tcp {
        host: "gateway".to_owned(),
        port: 1,
    }
}

struct MemoryBinder(MemoryNetwork);

struct Accepting(MemoryListener);

impl Binder for MemoryBinder {
    fn bind(&self, _host: &str, _port: u16) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let listener: Box<dyn Listener> = Box::new(Accepting(self.0.listen(gateway())));
        std::future::ready(Ok(listener)).boxed()
    }
}

impl Listener for Accepting {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        async {
            let io = self.0.next().await.ok_or(io::ErrorKind::BrokenPipe)??;
            Ok(Box::new(io) as Box<dyn Io>)
        }
        .boxed()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 1)))
    }
}

// ---------------------------------------------------------------- requests

pub fn chat(text: &str) -> Value {
    json!({"model": MODEL, "messages": [{"role": "user", "content": text}]})
}

/// `base` with the fields of `more`.
pub fn with(base: Value, more: Value) -> Value {
    let mut object = base.as_object().unwrap().clone();
    object.extend(more.as_object().unwrap().clone());
    Value::Object(object)
}
