//! A client and a scripted engine on a network inside the process.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "test code; each file uses its part"
)]

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use smg_engine_client::{
    Address, Completion, EngineClient, EngineError, EngineEvent, GenerateSpec, TokenChunk,
};
use smg_engine_client::{GenerateStream, Sampling};
use smg_simulator::{MemoryNetwork, Record, SimulatedEngine, SimulatedEngineBuilder};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub struct Rig {
    pub engine: SimulatedEngine,
    pub client: EngineClient,
    pub network: MemoryNetwork,
    /// The client's tasks.
    pub tasks: TaskTracker,
    servers: TaskTracker,
    stop: CancellationToken,
}

pub fn address() -> Address {
    "grpc://worker:30001".parse().unwrap()
}

impl Rig {
    /// A client, and an engine that serves it.
    pub fn start(builder: SimulatedEngineBuilder) -> Self {
        let mut rig = Self::without_server(builder);
        rig.serve();
        rig
    }

    pub fn without_server(builder: SimulatedEngineBuilder) -> Self {
        let (network, tasks) = (MemoryNetwork::new(), TaskTracker::new());
        Self {
            engine: builder.build(),
            client: EngineClient::new(address(), Arc::new(network.clone()), tasks.clone()),
            network,
            tasks,
            servers: TaskTracker::new(),
            stop: CancellationToken::new(),
        }
    }

    pub fn serve(&mut self) {
        self.stop = CancellationToken::new();
        let (engine, listener) = (self.engine.clone(), self.network.listen(address()));
        let stopped = self.stop.clone().cancelled_owned();
        self.servers
            .spawn(async move { engine.serve(listener, stopped).await.unwrap() });
    }

    /// Stops the server and its connections, and waits until it is gone.
    pub async fn crash(&mut self) {
        self.stop.cancel();
        self.engine.drop_connections();
        self.servers.close();
        self.servers.wait().await;
        self.servers.reopen();
    }

    pub async fn generate(&self, spec: GenerateSpec) -> GenerateStream {
        self.client.generate(spec).await.unwrap()
    }

    /// Waits until the engine's record satisfies a condition; fails after a minute.
    pub async fn until(&self, holds: impl FnMut(&Record) -> bool) {
        let held = tokio::time::timeout(Duration::from_secs(60), self.engine.wait_until(holds)).await;
        assert!(held.is_ok(), "never came about: {:?}", self.engine.record());
    }

    /// Waits for what the client does in the background.
    pub async fn settle(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

pub fn spec(input_ids: &[u32]) -> GenerateSpec {
    GenerateSpec {
        request_id: "req-1".to_owned(),
        input_ids: input_ids.to_vec(),
        ..GenerateSpec::default()
    }
}

pub fn spec_for_answers(input_ids: &[u32], n: u32) -> GenerateSpec {
    GenerateSpec {
        sampling: Sampling {
            n,
            ..Sampling::default()
        },
        ..spec(input_ids)
    }
}

/// Everything that a generation said, and the error it ended with.
#[derive(Debug, Default)]
pub struct Told {
    pub chunks: Vec<TokenChunk>,
    pub completions: Vec<Completion>,
    pub error: Option<EngineError>,
}

impl Told {
    pub fn token_ids(&self, index: u32) -> Vec<u32> {
        let chunks = self.chunks.iter().filter(|chunk| chunk.index == index);
        chunks.flat_map(|chunk| chunk.token_ids.iter().copied()).collect()
    }
}

pub async fn read_to_end(mut stream: GenerateStream) -> Told {
    let mut told = Told::default();
    while let Some(event) = stream.next().await {
        match event {
            Ok(EngineEvent::Tokens(chunk)) => told.chunks.push(chunk),
            Ok(EngineEvent::Complete(completion)) => told.completions.push(completion),
            Err(error) => told.error = Some(error),
        }
    }
    told
}

/// The next chunk's tokens.
pub async fn next_tokens(stream: &mut GenerateStream) -> Vec<u32> {
    match stream.next().await {
        Some(Ok(EngineEvent::Tokens(chunk))) => chunk.token_ids,
        other => panic!("expected tokens, got {other:?}"),
    }
}
