//! The client of one worker.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio_util::task::TaskTracker;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status};

use crate::address::Address;
use crate::bundle;
use crate::connector::Connector;
use crate::convert;
use crate::error::{CallSite, EngineError};
use crate::kv_events::{KvEvents, KvEventsError};
use crate::proto::common::{FlushCacheRequest, GetTokenizerRequest, SubscribeKvEventsRequest};
use crate::proto::engine::ControlRequest;
use crate::proto::engine::sglang_engine_client::SglangEngineClient;
use crate::proto::scheduler::sglang_scheduler_client::SglangSchedulerClient;
use crate::proto::scheduler::{
    AbortRequest, EmbedRequest, GetLoadsRequest, GetModelInfoRequest, GetServerInfoRequest,
    HealthCheckRequest, TokenizedInput,
};
use crate::request::{EmbedSpec, GenerateSpec};
use crate::stream::{AbortOnDrop, GenerateStream};
use crate::worker::{Embedding, Health, Load, ModelInfo};

/// The version of `sglang.engine.v1` that this client speaks.
pub const CONTROL_PROTOCOL_VERSION: u32 = 1;

/// Largest message in either direction, in bytes: long prompts with log probabilities exceed the usual 4 MiB.
const MAX_MESSAGE_BYTES: usize = 256 << 20;

/// Time for opening a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Bytes of the headers and trailers of one answer.
const MAX_STATUS_BYTES: u32 = 4 << 20;

/// Silence after which the connection is pinged, and the time for the answer. A peer that is gone without a
/// word is noticed after their sum. Pings more frequent than this are punished by servers with grpc's defaults.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Deadline of calls that the worker answers from memory.
const UNARY_DEADLINE: Duration = Duration::from_secs(30);

/// Deadline of the Abort for a generation whose reader has left.
const ABANDONED_ABORT_DEADLINE: Duration = Duration::from_secs(5);

/// Deadline of the whole tokenizer bundle.
const TOKENIZER_DEADLINE: Duration = Duration::from_secs(120);

/// Deadline of an administrative operation: loading weights takes minutes.
const CONTROL_DEADLINE: Duration = Duration::from_secs(600);

/// A client of one worker. Cheap to clone; clones share one HTTP/2 connection, which is opened by the first
/// call and again by the first call after it broke.
#[derive(Clone)]
pub struct EngineClient {
    address: Address,
    scheduler: SglangSchedulerClient<Channel>,
    engine: SglangEngineClient<Channel>,
    tasks: TaskTracker,
}

impl EngineClient {
    /// Must be called within a tokio runtime. Connects nothing yet. Aborts of abandoned generations run on
    /// `tasks`, so that a drain waits for them.
    pub fn new(address: Address, connector: Arc<dyn Connector>, tasks: TaskTracker) -> Self {
        let channel = channel(&address, connector);
        Self {
            scheduler: SglangSchedulerClient::new(channel.clone())
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            engine: SglangEngineClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_BYTES)
                .max_encoding_message_size(MAX_MESSAGE_BYTES),
            address,
            tasks,
        }
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.tasks
    }

    /// Starts a generation. Returns at once: the worker's refusals, like everything else, come from the
    /// stream, which owns the call from here on.
    pub async fn generate(&self, spec: GenerateSpec) -> Result<GenerateStream, EngineError> {
        let site = self.site("Generate", spec.timeout);
        let on_drop = AbortOnDrop::new(self.clone(), spec.request_id.clone());
        let num_answers = spec.sampling.n;
        let mut trace = MetadataMap::new();
        add_metadata(&mut trace, &spec.trace);
        let timeout = spec.timeout;
        let mut request = Request::new(convert::generate_request(spec));
        *request.metadata_mut() = trace;
        if let Some(timeout) = timeout {
            request.set_timeout(timeout);
        }
        let mut scheduler = self.scheduler.clone();
        let call = Box::pin(async move { scheduler.generate(request).await });
        Ok(GenerateStream::new(call, num_answers, site, on_drop))
    }

    /// The vector of a prompt. Dropped before it is there, the call is cancelled.
    pub async fn embed(&self, spec: EmbedSpec) -> Result<Embedding, EngineError> {
        let message = EmbedRequest {
            request_id: spec.request_id,
            tokenized: Some(TokenizedInput {
                original_text: String::new(),
                input_ids: spec.input_ids,
            }),
            ..EmbedRequest::default()
        };
        let mut client = self.scheduler.clone();
        let call = async |mut request: Request<EmbedRequest>| {
            add_metadata(request.metadata_mut(), &spec.trace);
            client.embed(request).await
        };
        let answer = self.unary("Embed", spec.timeout, message, call).await?;
        Ok(Embedding {
            values: answer.embedding,
            prompt_tokens: answer.prompt_tokens,
        })
    }

    /// Ends a request at the engine's next step. An id that the worker does not know is no error.
    pub async fn abort(&self, request_id: &str, reason: &str) -> Result<(), EngineError> {
        self.abort_within(request_id, reason, UNARY_DEADLINE).await
    }

    /// The abort of a generation that nobody waits for any more: failures are logged only.
    pub(crate) async fn abort_abandoned(&self, request_id: &str, reason: &str) {
        if let Err(error) = self
            .abort_within(request_id, reason, ABANDONED_ABORT_DEADLINE)
            .await
        {
            tracing::debug!(request_id, %error, "abandoned generation could not be aborted");
        }
    }

    async fn abort_within(&self, request_id: &str, reason: &str, limit: Duration) -> Result<(), EngineError> {
        let message = AbortRequest {
            request_id: request_id.to_owned(),
            reason: reason.to_owned(),
        };
        let mut client = self.scheduler.clone();
        self.unary("Abort", limit, message, async |request| {
            client.abort(request).await
        })
        .await?;
        Ok(())
    }

    /// Probes the worker. Workers that load or drain answer with an error of class `Unavailable`.
    pub async fn health(&self) -> Result<Health, EngineError> {
        let mut client = self.scheduler.clone();
        let call = async |request| client.health_check(request).await;
        Ok(convert::health(
            self.unary("HealthCheck", UNARY_DEADLINE, HealthCheckRequest {}, call)
                .await?,
        ))
    }

    pub async fn model_info(&self) -> Result<ModelInfo, EngineError> {
        let mut client = self.scheduler.clone();
        let call = async |request| client.get_model_info(request).await;
        let answer = self
            .unary("GetModelInfo", UNARY_DEADLINE, GetModelInfoRequest {}, call)
            .await?;
        convert::model_info(answer).map_err(|message| self.site("GetModelInfo", None).protocol(message))
    }

    /// The worker's options and state as one flat JSON object: the entries of its `server_args` and
    /// `scheduler_info` side by side, with `version`, `active_requests`, `is_paused`, `uptime_seconds` …
    pub async fn server_info(&self) -> Result<Value, EngineError> {
        let mut client = self.scheduler.clone();
        let call = async |request| client.get_server_info(request).await;
        let answer = self
            .unary("GetServerInfo", UNARY_DEADLINE, GetServerInfoRequest {}, call)
            .await?;
        Ok(convert::server_info(answer))
    }

    /// The load of each data-parallel rank; `include` names the sections, none = the core.
    pub async fn loads(&self, include: &[&str]) -> Result<Vec<Load>, EngineError> {
        let message = GetLoadsRequest {
            dp_rank: None,
            include: include.iter().map(|&section| section.to_owned()).collect(),
        };
        let mut client = self.scheduler.clone();
        let call = async |request| client.get_loads(request).await;
        let answer = self.unary("GetLoads", UNARY_DEADLINE, message, call).await?;
        Ok(answer.loads.into_iter().map(convert::load).collect())
    }

    /// Subscribes to what the worker caches and to its load, from batch `from` on; 0: a snapshot, then all news.
    pub async fn subscribe_kv_events(&self, from: u64) -> Result<KvEvents, KvEventsError> {
        let site = self.site("SubscribeKvEvents", None);
        let message = SubscribeKvEventsRequest {
            start_sequence_number: from,
            load_records_before_first_batch: true,
        };
        match self.scheduler.clone().subscribe_kv_events(message).await {
            Ok(response) => Ok(KvEvents::new(response.into_inner(), site)),
            Err(status) => Err(KvEventsError::of(&site, &status)),
        }
    }

    /// Empties the prefix cache, after waiting up to `timeout_s` seconds for idleness. Answers whether it
    /// did, and why not.
    pub async fn flush_cache(&self, timeout_s: f32) -> Result<(bool, String), EngineError> {
        let wait = Duration::try_from_secs_f32(timeout_s).unwrap_or_default();
        let mut client = self.scheduler.clone();
        let call = async |request| client.flush_cache(request).await;
        let limit = wait.saturating_add(UNARY_DEADLINE);
        let answer = self
            .unary("FlushCache", limit, FlushCacheRequest { timeout_s }, call)
            .await?;
        Ok((answer.success, answer.message))
    }

    /// The files that tokenizing and rendering chats need, by name. The archive's digest, sizes and names are
    /// checked.
    pub async fn tokenizer_files(&self) -> Result<BTreeMap<String, Vec<u8>>, EngineError> {
        let site = self.site("GetTokenizer", Some(TOKENIZER_DEADLINE));
        let download = tokio::time::timeout(TOKENIZER_DEADLINE, self.download_bundle(&site));
        let (archive, sha256) = download.await.map_err(|_| site.deadline())??;
        // Unpacking a large vocabulary takes long enough to hold up other requests.
        self.tasks
            .spawn_blocking(move || bundle::unpack(&archive, &sha256))
            .await
            .map_err(|error| site.protocol(error.to_string()))?
            .map_err(|message| site.protocol(message))
    }

    async fn download_bundle(&self, site: &CallSite) -> Result<(Vec<u8>, String), EngineError> {
        let request = with_deadline(GetTokenizerRequest {}, TOKENIZER_DEADLINE);
        let fail = |status: Status| site.explain(&status);
        let mut chunks = self
            .scheduler
            .clone()
            .get_tokenizer(request)
            .await
            .map_err(fail)?
            .into_inner();
        let (mut archive, mut sha256) = (Vec::new(), String::new());
        while let Some(chunk) = chunks.message().await.map_err(fail)? {
            if archive.len() + chunk.data.len() > bundle::MAX_ARCHIVE_BYTES {
                let message = format!("the archive exceeds {} bytes", bundle::MAX_ARCHIVE_BYTES);
                return Err(site.protocol(message));
            }
            archive.extend_from_slice(&chunk.data);
            sha256 = chunk.sha256;
        }
        Ok((archive, sha256))
    }

    /// Runs an administrative operation. `args` is a JSON object, or null for none. An unknown name or bad
    /// arguments come back with class `InvalidArgument`; foreign engines answer `Unimplemented`.
    pub async fn control(&self, name: &str, args: &Value) -> Result<Value, EngineError> {
        let message = ControlRequest {
            name: name.to_owned(),
            json: if args.is_null() {
                String::new()
            } else {
                args.to_string()
            },
            protocol_version: CONTROL_PROTOCOL_VERSION,
        };
        let mut client = self.engine.clone();
        let call = async |request| client.control(request).await;
        let answer = self.unary("Control", CONTROL_DEADLINE, message, call).await?;
        if answer.protocol_version != CONTROL_PROTOCOL_VERSION {
            return Err(EngineError::ProtocolVersion {
                address: self.address.clone(),
                ours: CONTROL_PROTOCOL_VERSION,
                theirs: answer.protocol_version,
            });
        }
        serde_json::from_str(&answer.json).map_err(|error| {
            self.site("Control", None)
                .protocol(format!("the result of {name:?} is no JSON: {error}"))
        })
    }

    async fn unary<M, R, F>(
        &self,
        operation: &'static str,
        limit: Duration,
        message: M,
        call: impl FnOnce(Request<M>) -> F,
    ) -> Result<R, EngineError>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let site = self.site(operation, Some(limit));
        let answer = tokio::time::timeout(limit, call(with_deadline(message, limit))).await;
        match answer {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(site.explain(&status)),
            Err(_) => Err(site.deadline()),
        }
    }

    fn site(&self, operation: &'static str, limit: Option<Duration>) -> CallSite {
        CallSite {
            address: self.address.clone(),
            operation,
            limit,
        }
    }
}

fn channel(address: &Address, connector: Arc<dyn Connector>) -> Channel {
    // An authority that is no URI (a hand-made address) only costs its name in the requests.
    let endpoint = Endpoint::from_shared(format!("http://{}", address.authority()))
        .unwrap_or_else(|_| Endpoint::from_static("http://worker"));
    let endpoint = endpoint
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        // A status longer than this breaks the connection, and with it everybody's answers.
        .http2_max_header_list_size(MAX_STATUS_BYTES)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let address = address.clone();
    endpoint.connect_with_connector_lazy(tower::service_fn(move |_uri| {
        let connection = connector.connect(&address);
        async move {
            let io = tokio::time::timeout(CONNECT_TIMEOUT, connection)
                .await
                .map_err(|_| {
                    let message = format!("no connection within {} s", CONNECT_TIMEOUT.as_secs());
                    io::Error::new(io::ErrorKind::TimedOut, message)
                })??;
            Ok::<_, io::Error>(TokioIo::new(io))
        }
    }))
}

fn with_deadline<M>(message: M, limit: Duration) -> Request<M> {
    let mut request = Request::new(message);
    request.set_timeout(limit);
    request
}

/// Pairs that are no metadata (binary keys, control characters) are left out: a client's odd trace header
/// must not cost it its answer.
fn add_metadata(map: &mut MetadataMap, pairs: &[(String, String)]) {
    for (key, value) in pairs {
        match (
            AsciiMetadataKey::from_bytes(key.as_bytes()),
            value.parse::<AsciiMetadataValue>(),
        ) {
            (Ok(key), Ok(value)) => {
                map.append(key, value);
            }
            _ => tracing::debug!(key, "left out of the request's metadata"),
        }
    }
}
