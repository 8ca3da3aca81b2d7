//! How an engine is put together.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use smg_engine_client::CONTROL_PROTOCOL_VERSION;
use smg_engine_client::proto::scheduler::{GenerateRequest, GetModelInfoResponse};

use crate::bundle::Bundle;
use crate::engine::{ControlHandler, Inner, SimulatedEngine};
use crate::kv_cache::KvCache;
use crate::record::Recorder;
use crate::script::{HealthScript, Script, ScriptSource};

/// Without further words: a ready engine of the model `simulated` that echoes prompts, has no tokenizer files
/// and knows no administrative operation.
pub struct SimulatedEngineBuilder {
    card: GetModelInfoResponse,
    server_args: Value,
    start_time: Option<i64>,
    bundle: Option<Bundle>,
    script: ScriptSource,
    health: HealthScript,
    control: ControlHandler,
    control_version: u32,
    has_engine_service: bool,
    keeps_lists: bool,
    cache: Option<KvCache>,
}

impl Default for SimulatedEngineBuilder {
    fn default() -> Self {
        Self {
            card: default_card("simulated"),
            server_args: json!({}),
            start_time: None,
            bundle: None,
            script: Box::new(|_| Script::default()),
            health: HealthScript::Ready,
            control: Box::new(|name, _| Err(format!("{name:?} is no operation of the simulated engine"))),
            control_version: CONTROL_PROTOCOL_VERSION,
            has_engine_service: true,
            keeps_lists: true,
            cache: None,
        }
    }
}

/// The card of a small generating model.
pub fn default_card(model: &str) -> GetModelInfoResponse {
    GetModelInfoResponse {
        model_path: model.to_owned(),
        tokenizer_path: model.to_owned(),
        served_model_name: model.to_owned(),
        is_generation: true,
        weight_version: "default".to_owned(),
        max_context_length: 8192,
        max_req_input_len: 8186,
        vocab_size: 49152,
        model_type: "llama".to_owned(),
        architectures: vec!["LlamaForCausalLM".to_owned()],
        eos_token_ids: vec![2],
        ..GetModelInfoResponse::default()
    }
}

impl SimulatedEngineBuilder {
    /// Serves the default card under another name.
    #[must_use]
    pub fn model(self, name: &str) -> Self {
        self.card(default_card(name))
    }

    #[must_use]
    pub fn card(mut self, card: GetModelInfoResponse) -> Self {
        self.card = card;
        self
    }

    /// The `server_args` of GetServerInfo, a JSON object.
    #[must_use]
    pub fn server_args(mut self, server_args: Value) -> Self {
        self.server_args = server_args;
        self
    }

    /// Tells when its process started, in seconds since the epoch.
    #[must_use]
    pub fn start_time(mut self, seconds: i64) -> Self {
        self.start_time = Some(seconds);
        self
    }

    pub fn tokenizer_files(mut self, files: &BTreeMap<String, Vec<u8>>) -> io::Result<Self> {
        self.bundle = Some(Bundle::of_files(files)?);
        Ok(self)
    }

    /// Any bytes as the tokenizer bundle, announced with their own digest or another one.
    #[must_use]
    pub fn tokenizer_archive(mut self, archive: Vec<u8>, sha256: Option<String>) -> Self {
        self.bundle = Some(Bundle::of_archive(archive, sha256));
        self
    }

    /// One script for every request.
    #[must_use]
    pub fn script(self, script: Script) -> Self {
        self.script_for(move |_| script.clone())
    }

    /// A script for each request.
    #[must_use]
    pub fn script_for(mut self, choose: impl Fn(&GenerateRequest) -> Script + Send + Sync + 'static) -> Self {
        self.script = Box::new(choose);
        self
    }

    #[must_use]
    pub fn health(mut self, health: HealthScript) -> Self {
        self.health = health;
        self
    }

    /// Answers administrative operations; a refusal becomes INVALID_ARGUMENT.
    #[must_use]
    pub fn control(
        mut self,
        handler: impl Fn(&str, &Value) -> Result<Value, String> + Send + Sync + 'static,
    ) -> Self {
        self.control = Box::new(handler);
        self
    }

    /// Claims another version of `sglang.engine.v1`.
    #[must_use]
    pub fn control_version(mut self, version: u32) -> Self {
        self.control_version = version;
        self
    }

    /// Plays a foreign engine, which lacks `sglang.engine.v1`.
    #[must_use]
    pub fn without_engine_service(mut self) -> Self {
        self.has_engine_service = false;
        self
    }

    /// Keeps counts only: for long runs, whose record would grow without end.
    #[must_use]
    pub fn counts_only(mut self) -> Self {
        self.keeps_lists = false;
        self
    }

    /// Keeps the pages of prompts, up to `capacity` of them, reports cached tokens, and tells of each change. Without
    /// this the rpc for events is not there.
    #[must_use]
    pub fn cache(mut self, page_tokens: usize, capacity: usize) -> Self {
        self.cache = Some(KvCache::new(page_tokens, capacity));
        self
    }

    pub fn build(self) -> SimulatedEngine {
        SimulatedEngine::from_inner(Inner {
            card: RwLock::new(self.card),
            server_args: self.server_args,
            start_time: RwLock::new(self.start_time),
            server_info_delay: RwLock::new(Duration::ZERO),
            bundle: self.bundle,
            script: RwLock::new(self.script),
            health: RwLock::new(self.health),
            load: RwLock::new(None),
            control: self.control,
            control_version: self.control_version,
            has_engine_service: self.has_engine_service,
            recorder: Recorder::new(self.keeps_lists),
            live: Mutex::new(HashMap::new()),
            next_key: AtomicU64::new(0),
            connections: Mutex::default(),
            cache: self.cache.map(Mutex::new),
        })
    }
}
