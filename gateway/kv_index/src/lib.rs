//! Which worker holds which prefix, so that a request can go where most of its prompt is cached.
//!
//! Two indexes answer the same question, [`PrefixLookup::lookup`]: for a prompt, each [`Target`] that holds a
//! beginning of it, with the tokens that lie in each tier.
//!
//! - [`KvIndex`] knows what workers report ([`KvEvent`]). An [`EventFeed`] per target puts the numbered batches
//!   of its stream in order, asks for what is missing, and says when the target's view is exact.
//! - [`ApproximateIndex`] remembers what workers were sent. It stands in for a target whose feed is off or not
//!   in step.
//!
//! ```
//! use std::num::NonZeroU32;
//! use smg_kv_index::{
//!     ApproximateIndex, EventBatch, EventFeed, FeedParams, KvEvent, KvIndex, Numbering, PrefixLookup, PromptKeys,
//!     Reaction, Repair, StoredBlocks, Target, Tier,
//! };
//!
//! let index = KvIndex::new(64 << 20);
//! let target = Target { worker: 7, rank: 0 };
//! let mut feed = EventFeed::new(FeedParams { numbering: Numbering::FromOne, repair: Repair::Resubscribe });
//! assert_eq!(feed.start(), Some(0)); // subscribe with this number
//!
//! let stored = StoredBlocks {
//!     tier: Tier::Device, namespace: String::new(), parent: None, block_size: 4, hashes: vec![-31, 32],
//!     tokens: vec![1, 2, 3, 4, 5, 6, 7, 8],
//! };
//! let batch = EventBatch { number: 1, timestamp: 0.5, events: vec![KvEvent::Stored(stored)], snapshot: None };
//! for reaction in feed.receive(batch) {
//!     match reaction {
//!         Reaction::Apply(events) => feed.count(index.apply(target, &events)),
//!         Reaction::Replay { .. } | Reaction::Resubscribe { .. } => unreachable!("nothing was lost"),
//!     }
//! }
//!
//! let prompt = PromptKeys::new(&[1, 2, 3, 4, 5, 6, 7, 8, 9][..], "");
//! let matches = index.lookup(&prompt);
//! assert!(feed.is_exact());
//! assert_eq!((matches[0].target, matches[0].device_tokens), (target, 8));
//!
//! let sent = ApproximateIndex::new(NonZeroU32::new(4).unwrap(), 1 << 20);
//! sent.insert(target, &prompt);
//! assert_eq!(sent.lookup(&prompt)[0].device_tokens, 8);
//! ```
//!
//! Nothing here performs I/O, waits, or reads a clock. Keys of pages are hashes, so no prompt is kept in clear.

mod approximate;
mod chunked;
mod event;
mod exact;
mod feed;
mod holders;
mod keys;
mod slots;
mod tables;
mod walk;

pub use approximate::{ApproximateIndex, SENT_PAGE_TOKENS};
pub use event::{Applied, KvEvent, RemovedBlocks, StoredBlocks, Tier};
pub use exact::{IndexStats, KvIndex};
pub use feed::{
    EventBatch, EventFeed, FeedCounters, FeedParams, Numbering, Reaction, Repair, SnapshotChunk, StreamEnd,
};
pub use keys::{PageKey, PagedPrompt, PromptKeys};

/// A cache of its own: one data-parallel rank of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    pub worker: u64,
    pub rank: u32,
}

/// What a target holds of a prompt's beginning. Each page counts once, in the fastest tier that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixMatch {
    pub target: Target,
    pub device_tokens: usize,
    pub host_tokens: usize,
    pub storage_tokens: usize,
}

impl PrefixMatch {
    /// Length of the beginning that is held without a hole.
    pub fn total_tokens(&self) -> usize {
        self.device_tokens + self.host_tokens + self.storage_tokens
    }
}

/// Answers who holds a prompt's beginning.
pub trait PrefixLookup: Send + Sync {
    /// Targets that hold at least the first page, each once, in no particular order.
    fn lookup(&self, prompt: &PromptKeys) -> Vec<PrefixMatch>;

    /// Drops all that is known of a target: it left, or its cache is lost.
    fn forget(&self, target: Target);
}
