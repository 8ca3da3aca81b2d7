//! What the engine was asked, for assertions.

use parking_lot::Mutex;
use serde_json::Value;
use smg_engine_client::proto::scheduler::{AbortRequest, GenerateRequest};
use tokio::sync::watch;
use tonic::metadata::{KeyAndValueRef, MetadataMap};

/// Everything the engine was asked, oldest first.
#[derive(Debug, Clone, Default)]
pub struct Record {
    pub counts: Counts,
    pub requests: Vec<RecordedRequest>,
    pub aborts: Vec<AbortRequest>,
    /// Ids of generations whose rpc ended before the engine was done.
    pub cancelled: Vec<String>,
    /// Ids of generations that the engine brought to an end, a scripted failure included.
    pub ended: Vec<String>,
    /// Administrative operations: name and arguments.
    pub operations: Vec<(String, Value)>,
    /// The sections of each question for the load.
    pub load_sections: Vec<Vec<String>>,
}

/// How often things happened; kept also where nothing else is recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Generations and embeddings.
    pub requests: u64,
    pub embeds: u64,
    pub aborts: u64,
    pub cancelled: u64,
    pub ended: u64,
    pub operations: u64,
    pub health_probes: u64,
    pub model_info: u64,
    pub server_info: u64,
    pub tokenizer: u64,
    pub flushes: u64,
    pub kv_subscriptions: u64,
    pub connections: u64,
}

/// A generation's request, with its text metadata in the order of arrival.
#[derive(Debug, Clone)]
pub struct RecordedRequest {
    pub message: GenerateRequest,
    pub metadata: Vec<(String, String)>,
}

impl RecordedRequest {
    pub(crate) fn new(message: &GenerateRequest, metadata: &MetadataMap) -> Self {
        let metadata = metadata
            .iter()
            .filter_map(|pair| match pair {
                KeyAndValueRef::Ascii(key, value) => Some((key.to_string(), value.to_str().ok()?.to_owned())),
                KeyAndValueRef::Binary(..) => None,
            })
            .collect();
        Self {
            message: message.clone(),
            metadata,
        }
    }

    /// The first value of a metadata key.
    pub fn metadata(&self, key: &str) -> Option<&str> {
        self.metadata
            .iter()
            .find(|(name, _)| name == key)
            .map(|(_, value)| value.as_str())
    }
}

/// A record that tells when it changes.
pub(crate) struct Recorder {
    record: Mutex<Record>,
    changed: watch::Sender<()>,
    /// Off, only the counts are kept.
    keeps_lists: bool,
}

impl Recorder {
    pub fn new(keeps_lists: bool) -> Self {
        Self {
            record: Mutex::default(),
            changed: watch::Sender::new(()),
            keeps_lists,
        }
    }

    pub fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.record.lock().counts);
        self.changed.send_replace(());
    }

    /// Counts, and keeps what `keep` adds unless lists are off.
    pub fn note(&self, count: impl FnOnce(&mut Counts), keep: impl FnOnce(&mut Record)) {
        {
            let mut record = self.record.lock();
            count(&mut record.counts);
            if self.keeps_lists {
                keep(&mut record);
            }
        }
        self.changed.send_replace(());
    }

    pub fn snapshot(&self) -> Record {
        self.record.lock().clone()
    }

    pub fn counts(&self) -> Counts {
        self.record.lock().counts
    }

    pub async fn wait_until(&self, mut holds: impl FnMut(&Record) -> bool) {
        let mut changes = self.changed.subscribe();
        loop {
            if holds(&self.record.lock()) {
                return;
            }
            // The sender lives as long as `self`: an error cannot come.
            if changes.changed().await.is_err() {
                return;
            }
        }
    }
}
