//! What a worker that came up is asked for: its model, and the files to tokenize for it.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use serde_json::{Map, Value};
use smg_engine_client::{EngineError, ModelInfo};
use smg_routing::{Role, WorkerInfo};
use smg_tokenizer::{Tokenizer, TokenizerError, TokenizerFiles};
use tokio_util::task::TaskTracker;

use super::{Fleet, Member, Served};

/// Where tokenizers come from besides the workers themselves.
#[derive(Clone, Default)]
pub struct TokenizerSource {
    /// Used for every model instead of what the worker has.
    pub folder: Option<PathBuf>,
    /// Used instead of the template that came with the tokenizer.
    pub chat_template: Option<String>,
}

/// Why a worker that answers cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    #[error("the worker names neither a served model nor a model path")]
    Nameless,
    #[error(
        "the worker does not hand out its tokenizer ({refusal}) and its folder {folder:?} is not readable here; \
         give --tokenizer-path"
    )]
    NoTokenizer { refusal: String, folder: String },
    #[error("a connection to the worker ended while it was asked what it serves; it is asked again")]
    Broke,
    #[error("building the tokenizer failed: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// A tokenizer's files and a digest that tells whether two workers have the same.
struct Source {
    files: TokenizerFiles,
    fingerprint: u64,
}

impl Fleet {
    /// Asks a healthy worker what it serves, and keeps the answer if one process gave all of it. Returns when that
    /// process started, where it tells.
    pub(super) async fn load(
        &self,
        member: &Member,
        source: &TokenizerSource,
        tasks: &TaskTracker,
    ) -> Result<Option<String>, LoadError> {
        let num_rings = member.alarm.num_rings();
        member
            .progress
            .store(Arc::new("reading its model information".to_owned()));
        let mut info = member.client.model_info().await?;
        let server = self.server_info(member).await;
        if info.max_context_length == 0 {
            let told = server.get("context_length").and_then(Value::as_u64);
            info.max_context_length = told.and_then(|tokens| u32::try_from(tokens).ok()).unwrap_or(0);
        }
        let model: Arc<str> = info.model_id().into();
        if model.is_empty() {
            return Err(LoadError::Nameless);
        }
        member
            .progress
            .store(Arc::new("fetching its tokenizer".to_owned()));
        let files = source.read(member, &info, tasks).await?;
        let fingerprint = files.fingerprint;
        let tokenizer = self.tokenizer(files, tasks).await?;
        if member.alarm.num_rings() != num_rings {
            // The answers may be those of two processes.
            return Err(LoadError::Broke);
        }
        let since = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |age| age.as_secs());
        member.learn(WorkerInfo {
            model: Some(model.to_string()),
            role: Role::Regular,
            labels: labels(&info, &server),
        });
        self.update_policies();
        let capacity = server.get("max_total_num_tokens").and_then(Value::as_u64);
        let capacity = capacity.and_then(|tokens| usize::try_from(tokens).ok());
        self.prefixes.set_capacity(member.worker.id(), capacity);
        member.served.store(Some(Arc::new(Served {
            model,
            info,
            tokenizer,
            since,
            has_own_grammar_backend: has_own_grammar_backend(&server),
            fingerprint,
        })));
        member.progress.store(Arc::new("ready".to_owned()));
        Ok(server
            .get("start_time")
            .and_then(Value::as_str)
            .map(str::to_owned))
    }

    /// The worker's options and state; empty where it does not tell, as it can be used without.
    async fn server_info(&self, member: &Member) -> Map<String, Value> {
        match member.client.server_info().await {
            Ok(Value::Object(info)) => info,
            Ok(_) => Map::new(),
            Err(error) => {
                tracing::debug!(worker = member.worker.url(), %error, "no server information");
                Map::new()
            }
        }
    }

    /// A tokenizer for these files: that of another worker if it has the same ones.
    async fn tokenizer(&self, source: Source, tasks: &TaskTracker) -> Result<Tokenizer, LoadError> {
        let _building = self.building.lock().await;
        let others = self.members();
        let same = others
            .iter()
            .filter_map(|m| m.served())
            .find(|s| s.fingerprint == source.fingerprint);
        if let Some(same) = same {
            return Ok(same.tokenizer.clone());
        }
        // Large vocabularies take a second of computing.
        Ok(tasks
            .spawn_blocking(move || Tokenizer::new(source.files))
            .await??)
    }
}

impl TokenizerSource {
    async fn read(
        &self,
        member: &Member,
        info: &ModelInfo,
        tasks: &TaskTracker,
    ) -> Result<Source, LoadError> {
        if let Some(folder) = &self.folder {
            return self.read_folder(folder.clone(), tasks).await;
        }
        let refusal = match member.client.tokenizer_files().await {
            Ok(files) => return Ok(self.source(fingerprint_of_map(&files), TokenizerFiles::from_map(files)?)),
            Err(refusal) => refusal,
        };
        let folder = if info.tokenizer_path.is_empty() {
            &info.model_path
        } else {
            &info.tokenizer_path
        };
        if folder.is_empty() || !Path::new(folder).is_dir() {
            return Err(LoadError::NoTokenizer {
                refusal: refusal.message(),
                folder: folder.clone(),
            });
        }
        self.read_folder(folder.into(), tasks).await
    }

    async fn read_folder(&self, folder: PathBuf, tasks: &TaskTracker) -> Result<Source, LoadError> {
        let files = tasks
            .spawn_blocking(move || TokenizerFiles::read_dir(&folder))
            .await??;
        Ok(self.source(fingerprint_of_files(&files), files))
    }

    fn source(&self, fingerprint: u64, mut files: TokenizerFiles) -> Source {
        if let Some(template) = &self.chat_template {
            files.chat_template = Some(template.clone());
        }
        Source { files, fingerprint }
    }
}

fn fingerprint_of_map(files: &BTreeMap<String, Vec<u8>>) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.hash(&mut hasher);
    hasher.finish()
}

fn fingerprint_of_files(files: &TokenizerFiles) -> u64 {
    let mut hasher = DefaultHasher::new();
    files.tokenizer_json.hash(&mut hasher);
    files.chat_template.hash(&mut hasher);
    for json in [&files.tokenizer_config, &files.config, &files.generation_config] {
        json.as_ref().map(ToString::to_string).hash(&mut hasher);
    }
    hasher.finish()
}

/// The grammar backends whose limits `smg_api` knows.
const OWN_GRAMMAR_BACKENDS: [&str; 2] = ["llguidance", "xgrammar"];

/// A plugin that took the name of one of them is not that one; where the worker tells nothing of plugins there are none.
fn has_own_grammar_backend(server: &Map<String, Value>) -> bool {
    let told = |field| server.get(field).and_then(Value::as_str);
    let is_named = told("grammar_backend").is_some_and(|name| OWN_GRAMMAR_BACKENDS.contains(&name));
    is_named && told("grammar_backend_source").is_none_or(|source| source.starts_with("sglang."))
}

/// Options of a worker that operators look for.
const SERVER_LABELS: [&str; 8] = [
    "version",
    "tp_size",
    "dp_size",
    "page_size",
    "device",
    "dtype",
    "max_running_requests",
    "max_total_num_tokens",
];

fn labels(info: &ModelInfo, server: &Map<String, Value>) -> BTreeMap<String, String> {
    let of_model = [
        ("model_path", info.model_path.clone()),
        ("tokenizer_path", info.tokenizer_path.clone()),
        ("weight_version", info.weight_version.clone()),
        ("model_type", info.model_type.clone()),
        ("architectures", info.architectures.join(",")),
        ("max_context_length", info.max_context_length.to_string()),
        ("vocab_size", info.vocab_size.to_string()),
    ];
    let of_server = SERVER_LABELS.iter().filter_map(|name| {
        let text = match server.get(*name)? {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return None,
        };
        Some((*name, text))
    });
    let named = of_model
        .into_iter()
        .chain(of_server)
        .filter(|(_, value)| !value.is_empty());
    named.map(|(name, value)| (name.to_owned(), value)).collect()
}
