//! A prefix cache without content: which pages an engine would hold, and the events that tell of it.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;

use futures::{Stream, StreamExt};
use smg_engine_client::proto::common::kv_cache_event::Data;
use smg_engine_client::proto::common::{
    EngineLoad, KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvCacheTier,
    KvEventBatch, KvSnapshotChunk,
};
use smg_engine_client::proto::scheduler::GenerateRequest;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::Status;

pub(crate) type Events = Pin<Box<dyn Stream<Item = Result<KvEventBatch, Status>> + Send>>;

/// Pages of whole prefixes, the least recently used leaf first to go. Each life of an engine hashes differently.
pub(crate) struct KvCache {
    page_tokens: usize,
    capacity: usize,
    life: u64,
    pages: HashMap<i64, Page>,
    clock: u64,
    batches: Vec<KvEventBatch>,
    /// Numbers up to this one cannot be replayed.
    forgotten: u64,
    subscribers: Vec<mpsc::UnboundedSender<Result<KvEventBatch, Status>>>,
    /// Batches that will reach no subscriber.
    to_lose: usize,
}

struct Page {
    parent: Option<i64>,
    tokens: Vec<u32>,
    namespace: Namespace,
    num_children: usize,
    used: u64,
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Namespace {
    salt: Option<String>,
    adapter: String,
}

impl KvCache {
    pub fn new(page_tokens: usize, capacity: usize) -> Self {
        Self {
            page_tokens,
            capacity,
            life: 0,
            pages: HashMap::new(),
            clock: 0,
            batches: Vec::new(),
            forgotten: 0,
            subscribers: Vec::new(),
            to_lose: 0,
        }
    }

    /// Computes a prompt: returns its cached tokens, keeps its pages, and tells what changed.
    pub fn take(&mut self, request: &GenerateRequest) -> u32 {
        let namespace = Namespace::of(request);
        let ids = request
            .tokenized
            .as_ref()
            .map_or(&[][..], |tokenized| tokenized.input_ids.as_slice());
        // The last token of a prompt is always computed.
        let cached = self.num_held(&namespace, &ids[..ids.len().saturating_sub(1)]);
        let mut events = Vec::new();
        let (mut parent, mut held) = (None, Vec::new());
        for tokens in ids.chunks_exact(self.page_tokens).take(self.capacity) {
            let hash = self.hash(parent, &namespace, tokens);
            self.clock += 1;
            if let Some(page) = self.pages.get_mut(&hash) {
                page.used = self.clock;
            } else {
                self.insert(hash, parent, tokens, &namespace);
                events.push(self.stored(hash));
            }
            held.push(hash);
            parent = Some(hash);
        }
        while self.pages.len() > self.capacity {
            match self.evict(&held) {
                Some(hash) => events.push(removed(hash)),
                None => break,
            }
        }
        if !events.is_empty() {
            self.publish(events);
        }
        cached as u32
    }

    /// Leading tokens that are held, in whole pages.
    fn num_held(&self, namespace: &Namespace, ids: &[u32]) -> usize {
        let mut parent = None;
        let held = ids.chunks_exact(self.page_tokens).take_while(|tokens| {
            let hash = self.hash(parent, namespace, tokens);
            parent = Some(hash);
            self.pages.contains_key(&hash)
        });
        held.count() * self.page_tokens
    }

    /// Drops everything and says so.
    pub fn clear(&mut self) {
        self.pages.clear();
        self.publish(vec![event(Data::Cleared(KvCacheCleared::default()))]);
    }

    /// The next `count` batches are numbered and kept, and reach no subscriber.
    pub fn lose(&mut self, count: usize) {
        self.to_lose += count;
    }

    /// Batches up to now cannot be replayed: only a snapshot tells of them.
    pub fn forget_history(&mut self) {
        self.forgotten = self.batches.len() as u64;
    }

    /// Ends all streams without an error.
    pub fn end_streams(&mut self) {
        self.subscribers.clear();
    }

    /// Another process: nothing is cached, numbers begin again, and streams break.
    pub fn restart(&mut self) {
        let (page_tokens, capacity, life) = (self.page_tokens, self.capacity, self.life + 1);
        *self = Self {
            life,
            ..Self::new(page_tokens, capacity)
        };
    }

    /// A stream from batch `from` on; 0: a snapshot first.
    pub fn subscribe(&mut self, from: u64) -> Result<Events, Status> {
        let last = self.batches.len() as u64;
        if from > last + 1 || (from > 0 && from <= self.forgotten) {
            let message = format!("batch {from} is not there; the last one is {last}");
            return Err(Status::out_of_range(message));
        }
        let first = match from {
            0 => vec![self.snapshot(last)],
            _ => self.batches[from as usize - 1..].to_vec(),
        };
        let (sender, receiver) = mpsc::unbounded_channel();
        self.subscribers.push(sender);
        let first = futures::stream::iter(first.into_iter().map(Ok));
        Ok(Box::pin(first.chain(UnboundedReceiverStream::new(receiver))))
    }

    fn snapshot(&self, last: u64) -> KvEventBatch {
        let mut in_order: Vec<(&i64, &Page)> = self.pages.iter().collect();
        in_order.sort_by_key(|(_, page)| self.depth(page));
        let mut events = vec![event(Data::Cleared(KvCacheCleared::default()))];
        events.extend(in_order.into_iter().map(|(hash, _)| self.stored(*hash)));
        KvEventBatch {
            sequence_number: last,
            timestamp: self.time(),
            events,
            snapshot: Some(KvSnapshotChunk {
                index: 0,
                count: 1,
                blocks: self.pages.len() as u64,
                unknown_before: 0,
            }),
            ..KvEventBatch::default()
        }
    }

    fn depth(&self, page: &Page) -> usize {
        let parents = std::iter::successors(page.parent, |parent| self.pages.get(parent)?.parent);
        parents.count()
    }

    fn publish(&mut self, events: Vec<KvCacheEvent>) {
        let batch = KvEventBatch {
            sequence_number: self.batches.len() as u64 + 1,
            timestamp: self.time(),
            events,
            load: Some(EngineLoad::default()),
            ..KvEventBatch::default()
        };
        self.batches.push(batch.clone());
        if self.to_lose > 0 {
            self.to_lose -= 1;
            return;
        }
        self.subscribers
            .retain(|subscriber| subscriber.send(Ok(batch.clone())).is_ok());
    }

    /// Grows with each use and with each life.
    fn time(&self) -> f64 {
        self.life as f64 * 1e6 + self.clock as f64
    }

    fn hash(&self, parent: Option<i64>, namespace: &Namespace, tokens: &[u32]) -> i64 {
        let mut hasher = DefaultHasher::new();
        (self.life, parent, namespace, tokens).hash(&mut hasher);
        hasher.finish().cast_signed()
    }

    fn insert(&mut self, hash: i64, parent: Option<i64>, tokens: &[u32], namespace: &Namespace) {
        if let Some(parent) = parent.and_then(|parent| self.pages.get_mut(&parent)) {
            parent.num_children += 1;
        }
        let page = Page {
            parent,
            tokens: tokens.to_vec(),
            namespace: namespace.clone(),
            num_children: 0,
            used: self.clock,
        };
        self.pages.insert(hash, page);
    }

    fn evict(&mut self, held: &[i64]) -> Option<i64> {
        let leaves = self
            .pages
            .iter()
            .filter(|(hash, page)| page.num_children == 0 && !held.contains(hash));
        let hash = leaves.min_by_key(|(_, page)| page.used).map(|(hash, _)| *hash)?;
        let parent = self.pages.remove(&hash)?.parent;
        if let Some(parent) = parent.and_then(|parent| self.pages.get_mut(&parent)) {
            parent.num_children -= 1;
        }
        Some(hash)
    }

    fn stored(&self, hash: i64) -> KvCacheEvent {
        let page = &self.pages[&hash];
        event(Data::Stored(KvBlocksStored {
            blocks: vec![KvBlock {
                block_hash: hash,
                token_ids: page.tokens.clone(),
                block_size: self.page_tokens as i32,
                ..KvBlock::default()
            }],
            parent_block_hash: page.parent,
            tier: Some(KvCacheTier::Device as i32),
            cache_salt: page.namespace.salt.clone(),
            lora_name: Some(page.namespace.adapter.clone()).filter(|name| !name.is_empty()),
            ..KvBlocksStored::default()
        }))
    }
}

impl Namespace {
    /// `extra_key` with `cache_salt` appended, as the engine makes it.
    fn of(request: &GenerateRequest) -> Self {
        let parts = [&request.extra_key, &request.cache_salt];
        let is_set = parts.iter().any(|part| part.is_some());
        let joined: String = parts.into_iter().flatten().map(String::as_str).collect();
        Self {
            salt: is_set.then_some(joined),
            adapter: request.lora_id.clone(),
        }
    }
}

fn removed(hash: i64) -> KvCacheEvent {
    event(Data::Removed(KvBlocksRemoved {
        block_hashes: vec![hash],
        tier: Some(KvCacheTier::Device as i32),
        ..KvBlocksRemoved::default()
    }))
}

fn event(data: Data) -> KvCacheEvent {
    KvCacheEvent {
        event_id: 0,
        data: Some(data),
    }
}

#[cfg(test)]
mod tests {
    use smg_engine_client::proto::scheduler::TokenizedInput;

    use super::*;

    fn prompt(ids: impl IntoIterator<Item = u32>) -> GenerateRequest {
        GenerateRequest {
            tokenized: Some(TokenizedInput {
                input_ids: ids.into_iter().collect(),
                ..TokenizedInput::default()
            }),
            ..GenerateRequest::default()
        }
    }

    #[test]
    fn a_prompt_is_cached_in_whole_pages_of_its_namespace() {
        let mut cache = KvCache::new(4, 100);
        assert_eq!(cache.take(&prompt(0..10)), 0);
        assert_eq!(cache.take(&prompt(0..10)), 8);
        assert_eq!(cache.take(&prompt(0..8)), 4, "the last token is computed");
        let salted = GenerateRequest {
            cache_salt: Some("x".to_owned()),
            ..prompt(0..10)
        };
        assert_eq!(cache.take(&salted), 0);
        assert_eq!(cache.take(&salted), 8);
    }

    #[test]
    fn the_least_recently_used_end_of_a_prompt_goes_first() {
        let mut cache = KvCache::new(2, 4);
        cache.take(&prompt([1, 2, 3, 4]));
        cache.take(&prompt([5, 6, 7, 8]));
        cache.take(&prompt([9, 9]));
        assert_eq!(cache.num_held(&Namespace::default(), &[1, 2, 3, 4]), 2);
        assert_eq!(cache.num_held(&Namespace::default(), &[5, 6, 7, 8]), 4);
        let events = &cache.batches[2].events;
        assert!(matches!(events[0].data, Some(Data::Stored(_))));
        assert!(matches!(events[1].data, Some(Data::Removed(_))));
    }

    #[test]
    fn what_cannot_be_replayed_is_out_of_range() {
        let mut cache = KvCache::new(2, 4);
        cache.take(&prompt([1, 2]));
        assert!(cache.subscribe(1).is_ok() && cache.subscribe(2).is_ok());
        assert!(cache.subscribe(3).is_err());
        cache.forget_history();
        assert!(cache.subscribe(1).is_err() && cache.subscribe(0).is_ok());
    }
}
