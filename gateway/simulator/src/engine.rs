//! The engine that the services share, and its serving.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{Stream, StreamExt};
use parking_lot::{Mutex, RwLock};
use serde_json::Value;
use smg_engine_client::proto::engine::sglang_engine_server::SglangEngineServer;
use smg_engine_client::proto::scheduler::sglang_scheduler_server::SglangSchedulerServer;
use smg_engine_client::proto::scheduler::{GenerateRequest, GetModelInfoResponse, SchedulerLoad};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use crate::builder::SimulatedEngineBuilder;
use crate::bundle::Bundle;
use crate::connection::Accepted;
use crate::kv_cache::KvCache;
use crate::record::{Counts, Record, Recorder};
use crate::scheduler::{ControlService, SchedulerService};
use crate::script::{HealthScript, Script, ScriptSource};

const MAX_MESSAGE_BYTES: usize = 256 << 20;
const MAX_STREAMS_PER_CONNECTION: u32 = 100_000;
const STREAM_WINDOW_BYTES: u32 = 1 << 20;

/// A scripted engine. Clones are the same engine; it may serve several listeners, one after the other too.
#[derive(Clone)]
pub struct SimulatedEngine {
    inner: Arc<Inner>,
}

/// Answers an administrative operation, or refuses it with a sentence.
pub(crate) type ControlHandler = Box<dyn Fn(&str, &Value) -> Result<Value, String> + Send + Sync>;

pub(crate) struct Inner {
    pub card: RwLock<GetModelInfoResponse>,
    pub server_args: Value,
    /// When its process started, in seconds since the epoch; unset = not told.
    pub start_time: RwLock<Option<i64>>,
    pub server_info_delay: RwLock<Duration>,
    pub bundle: Option<Bundle>,
    pub script: RwLock<ScriptSource>,
    pub health: RwLock<HealthScript>,
    /// Set = reported instead of what is running.
    pub load: RwLock<Option<SchedulerLoad>>,
    pub control: ControlHandler,
    pub control_version: u32,
    pub has_engine_service: bool,
    pub recorder: Recorder,
    pub live: Mutex<HashMap<u64, (String, CancellationToken)>>,
    pub next_key: AtomicU64,
    pub connections: Mutex<CancellationToken>,
    pub cache: Option<Mutex<KvCache>>,
}

impl Inner {
    pub fn begin(&self, request_id: &str, aborted: CancellationToken) -> u64 {
        let key = self.next_key.fetch_add(1, Ordering::Relaxed);
        self.live.lock().insert(key, (request_id.to_owned(), aborted));
        key
    }

    pub fn leave(&self, key: u64) {
        self.live.lock().remove(&key);
    }

    pub fn abort(&self, request_id: &str) {
        for (id, aborted) in self.live.lock().values() {
            if id == request_id {
                aborted.cancel();
            }
        }
    }
}

impl SimulatedEngine {
    pub fn builder() -> SimulatedEngineBuilder {
        SimulatedEngineBuilder::default()
    }

    pub(crate) fn from_inner(inner: Inner) -> Self {
        Self {
            inner: Arc::new(inner),
        }
    }

    /// Serves the connections of a listener until `shutdown`, then ends the running rpcs and returns.
    /// `drop_connections` makes that end a sudden one.
    pub async fn serve<S, IO>(&self, incoming: S, shutdown: impl Future<Output = ()>) -> io::Result<()>
    where
        S: Stream<Item = io::Result<IO>>,
        IO: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let inner = Arc::clone(&self.inner);
        let incoming = incoming.map(move |connection| {
            inner.recorder.count(|c| c.connections += 1);
            let cut = inner.connections.lock().clone();
            connection.map(|io| Accepted::new(io, cut))
        });
        let scheduler = SglangSchedulerServer::new(SchedulerService(Arc::clone(&self.inner)))
            .max_decoding_message_size(MAX_MESSAGE_BYTES)
            .max_encoding_message_size(MAX_MESSAGE_BYTES);
        let control = self
            .inner
            .has_engine_service
            .then(|| SglangEngineServer::new(ControlService(Arc::clone(&self.inner))));
        Server::builder()
            .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .add_service(scheduler)
            .add_optional_service(control)
            .serve_with_incoming_shutdown(incoming, shutdown)
            .await
            .map_err(io::Error::other)
    }

    /// Cuts all connections, as a crash does. New ones are accepted while `serve` runs.
    pub fn drop_connections(&self) {
        let cut = std::mem::take(&mut *self.inner.connections.lock());
        cut.cancel();
    }

    /// Every later generation follows this script.
    pub fn set_script(&self, script: Script) {
        self.set_script_for(move |_| script.clone());
    }

    /// Every later generation follows the script that is chosen for its request.
    pub fn set_script_for(&self, choose: impl Fn(&GenerateRequest) -> Script + Send + Sync + 'static) {
        *self.inner.script.write() = Box::new(choose);
    }

    pub fn set_health(&self, health: HealthScript) {
        *self.inner.health.write() = health;
    }

    pub fn set_card(&self, card: GetModelInfoResponse) {
        *self.inner.card.write() = card;
    }

    /// Tells that its process started then, in seconds since the epoch: another process if that is news.
    pub fn set_start_time(&self, seconds: i64) {
        *self.inner.start_time.write() = Some(seconds);
    }

    /// Answers GetServerInfo after this long.
    pub fn set_server_info_delay(&self, delay: Duration) {
        *self.inner.server_info_delay.write() = delay;
    }

    /// Reports this load instead of what is running.
    pub fn set_load(&self, load: SchedulerLoad) {
        *self.inner.load.write() = Some(load);
    }

    /// The next `count` batches of KV events reach nobody, though they can be replayed.
    pub fn lose_kv_events(&self, count: usize) {
        self.with_cache(|cache| cache.lose(count));
    }

    /// KV events up to now cannot be replayed.
    pub fn forget_kv_history(&self) {
        self.with_cache(KvCache::forget_history);
    }

    /// Ends the streams of KV events without an error.
    pub fn end_kv_streams(&self) {
        self.with_cache(KvCache::end_streams);
    }

    /// Drops the prefix cache and says so.
    pub fn clear_cache(&self) {
        self.with_cache(KvCache::clear);
    }

    /// The cache of another process: empty, and its KV events are numbered from the start.
    pub fn restart_cache(&self) {
        self.with_cache(KvCache::restart);
    }

    fn with_cache(&self, change: impl FnOnce(&mut KvCache)) {
        if let Some(cache) = &self.inner.cache {
            change(&mut cache.lock());
        }
    }

    /// What the engine was asked so far.
    pub fn record(&self) -> Record {
        self.inner.recorder.snapshot()
    }

    pub fn counts(&self) -> Counts {
        self.inner.recorder.counts()
    }

    /// Generations that are running.
    pub fn num_running(&self) -> usize {
        self.inner.live.lock().len()
    }

    /// Returns as soon as the record satisfies a condition.
    pub async fn wait_until(&self, holds: impl FnMut(&Record) -> bool) {
        self.inner.recorder.wait_until(holds).await;
    }
}
