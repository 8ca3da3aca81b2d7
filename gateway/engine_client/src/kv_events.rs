//! What a worker reports of its prefix cache and its load: the stream of `SubscribeKvEvents`.

use tonic::{Code, Status, Streaming};

use crate::error::{CallSite, EngineError};
use crate::proto::common as wire;
use crate::proto::common::kv_cache_event::Data;

/// One message of the stream.
#[derive(Clone, Debug, PartialEq)]
pub struct KvBatch {
    /// 1, 2, 3 … per rank.
    pub number: u64,
    pub rank: u32,
    /// Seconds since the epoch, of the worker's clock.
    pub timestamp: f64,
    /// `None`: the message only tells the load.
    pub changes: Option<Vec<KvChange>>,
    /// Set while a snapshot is sent.
    pub snapshot: Option<KvSnapshotPart>,
    pub load: Option<PushedLoad>,
}

/// Position of a message inside a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvSnapshotPart {
    pub index: u32,
    pub count: u32,
    /// Batches before this number are not covered.
    pub unknown_before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvTier {
    Device,
    Host,
    /// Disk, or a store outside the worker.
    Storage,
}

/// One change of the worker's own cache of whole prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvChange {
    Stored(KvStored),
    Removed { tier: Option<KvTier>, hashes: Vec<i64> },
    Cleared,
}

/// Consecutive pages of one prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvStored {
    pub tier: KvTier,
    /// The page before the first one; unset at the start of a prompt.
    pub parent: Option<i64>,
    pub adapter: String,
    /// Namespace of the prefix cache.
    pub cache_salt: Option<String>,
    /// Tokens of a page.
    pub page_tokens: u32,
    pub hashes: Vec<i64>,
    /// Of all pages in a row.
    pub token_ids: Vec<u32>,
}

/// Load of one rank at the time of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PushedLoad {
    pub running_requests: u32,
    pub waiting_requests: u32,
    /// Prompt tokens of waiting requests that are not cached; unset = not told.
    pub waiting_uncached_tokens: Option<u32>,
    /// Prompt tokens of the running prefill that are still to be computed; unset = not told.
    pub prefill_pending_tokens: Option<u32>,
    /// Used share of the KV pool (0 to 1).
    pub token_usage: f64,
    /// Generated tokens per second.
    pub gen_throughput: f64,
    pub max_running_requests: u32,
    /// Tokens that fit the KV pool; unset = not told.
    pub max_total_num_tokens: Option<u32>,
    /// Age of the sample when it was sent, in milliseconds.
    pub age_ms: u32,
}

/// The stream of one subscription. Dropped, it ends on the worker too.
pub struct KvEvents {
    messages: Streaming<wire::KvEventBatch>,
    site: CallSite,
}

/// Why a subscription ended or could not begin.
#[derive(Debug, thiserror::Error)]
pub enum KvEventsError {
    /// The worker does not have the batches that were asked for.
    #[error("{0}")]
    HistoryLost(EngineError),
    /// The worker has no events.
    #[error("{0}")]
    Unimplemented(EngineError),
    #[error("{0}")]
    Broken(EngineError),
}

impl KvEventsError {
    pub(crate) fn of(site: &CallSite, status: &Status) -> Self {
        let error = site.explain(status);
        match (&error, status.code()) {
            (EngineError::Status { .. }, Code::OutOfRange | Code::DataLoss) => Self::HistoryLost(error),
            (EngineError::Status { .. }, Code::Unimplemented) => Self::Unimplemented(error),
            _ => Self::Broken(error),
        }
    }
}

impl KvEvents {
    pub(crate) fn new(messages: Streaming<wire::KvEventBatch>, site: CallSite) -> Self {
        Self { messages, site }
    }

    /// The next message; `None` when the worker ended the stream without an error.
    pub async fn next(&mut self) -> Option<Result<KvBatch, KvEventsError>> {
        let message = self.messages.message().await;
        match message {
            Ok(message) => Some(Ok(batch(message?))),
            Err(status) => Some(Err(KvEventsError::of(&self.site, &status))),
        }
    }
}

fn batch(message: wire::KvEventBatch) -> KvBatch {
    let load_only = message.load.as_ref().is_some_and(|load| load.load_only);
    let changes = message.events.into_iter().filter_map(|event| event.data);
    KvBatch {
        number: message.sequence_number,
        rank: message
            .dp_rank
            .and_then(|rank| u32::try_from(rank).ok())
            .unwrap_or_default(),
        timestamp: message.timestamp,
        changes: (!load_only).then(|| changes.filter_map(change).collect()),
        snapshot: message.snapshot.map(|part| KvSnapshotPart {
            index: part.index,
            count: part.count,
            unknown_before: part.unknown_before,
        }),
        load: message.load.map(|load| pushed_load(&load)),
    }
}

/// `None` of what is not the worker's own, or stands for less than a whole prefix: pages elsewhere, pages of further
/// groups of layers, and sliding windows.
fn change(data: Data) -> Option<KvChange> {
    match data {
        Data::Stored(stored) => {
            let is_partial = stored.kv_cache_spec_sliding_window.is_some();
            let counts = is_own(stored.locality, stored.group_idx) && !is_partial;
            counts.then(|| KvChange::Stored(self::stored(stored)))
        }
        Data::Removed(removed) => {
            let counts = is_own(removed.locality, removed.group_idx);
            counts.then(|| KvChange::Removed {
                tier: removed.tier.map(|tier| tier_of(Some(tier))),
                hashes: removed.block_hashes,
            })
        }
        Data::Cleared(_) => Some(KvChange::Cleared),
    }
}

fn is_own(locality: Option<i32>, group: Option<u32>) -> bool {
    locality != Some(wire::KvCacheLocality::Remote as i32) && group.is_none_or(|group| group == 0)
}

fn stored(stored: wire::KvBlocksStored) -> KvStored {
    let page_tokens = stored.blocks.first().map_or(0, |block| block.block_size);
    let num_tokens = stored.blocks.iter().map(|block| block.token_ids.len()).sum();
    let (mut hashes, mut token_ids) = (
        Vec::with_capacity(stored.blocks.len()),
        Vec::with_capacity(num_tokens),
    );
    for block in stored.blocks {
        hashes.push(block.block_hash);
        token_ids.extend(block.token_ids);
    }
    KvStored {
        tier: tier_of(stored.tier),
        parent: stored.parent_block_hash,
        adapter: stored.lora_name.unwrap_or_default(),
        cache_salt: stored.cache_salt,
        page_tokens: u32::try_from(page_tokens).unwrap_or_default(),
        hashes,
        token_ids,
    }
}

fn tier_of(tier: Option<i32>) -> KvTier {
    match tier.and_then(|tier| wire::KvCacheTier::try_from(tier).ok()) {
        Some(wire::KvCacheTier::Host) => KvTier::Host,
        Some(wire::KvCacheTier::Disk | wire::KvCacheTier::External) => KvTier::Storage,
        Some(wire::KvCacheTier::Device | wire::KvCacheTier::Unspecified) | None => KvTier::Device,
    }
}

fn pushed_load(load: &wire::EngineLoad) -> PushedLoad {
    PushedLoad {
        running_requests: load.running_requests,
        waiting_requests: load.waiting_requests,
        waiting_uncached_tokens: load.waiting_uncached_tokens,
        prefill_pending_tokens: load.prefill_pending_tokens,
        token_usage: load.token_usage,
        gen_throughput: load.gen_throughput,
        max_running_requests: load.max_running_requests,
        max_total_num_tokens: load
            .max_total_num_tokens
            .and_then(|tokens| u32::try_from(tokens).ok()),
        age_ms: load.age_ms,
    }
}

#[cfg(test)]
mod tests;
