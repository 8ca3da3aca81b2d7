//! What the workers' prefix caches hold: as they report it, and for those that report nothing as they were sent it.

use std::collections::HashMap;

use parking_lot::RwLock;
use smg_kv_index::{
    ApproximateIndex, EventFeed, IndexStats, KvEvent, KvIndex, PrefixLookup, PrefixMatch, PromptKeys,
    SENT_PAGE_TOKENS, Target,
};
use smg_routing::WorkerId;

/// Both indexes, and which of them speaks for a worker. Where what a worker reports has a hole, what it was sent stands
/// in until the hole is closed.
pub struct Prefixes {
    reported: KvIndex,
    sent: ApproximateIndex,
    /// Pages remembered of a worker that does not tell how many tokens its cache takes.
    pages_untold: usize,
    feeds: RwLock<HashMap<Target, FeedState>>,
}

/// Where a worker's reports stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedState {
    /// The index follows the worker without a hole.
    pub is_exact: bool,
    pub counters: smg_kv_index::FeedCounters,
}

/// Sizes of the index of what was sent.
pub struct SentStats {
    pub bytes: usize,
    /// Each counted once for each worker that was sent it.
    pub pages: usize,
    /// Pages that went for want of memory.
    pub evicted: u64,
}

/// Leading tokens of a prompt that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    pub worker: WorkerId,
    pub device: usize,
    pub host: usize,
    pub storage: usize,
}

/// Shares of a token's computation that are saved when it lies in host memory, or on a disk.
const HOST_WORTH: f64 = 0.8;
const STORAGE_WORTH: f64 = 0.5;

// === impl Held ===

impl Held {
    fn of(found: &PrefixMatch) -> Self {
        Self {
            worker: WorkerId::new(found.target.worker),
            device: found.device_tokens,
            host: found.host_tokens,
            storage: found.storage_tokens,
        }
    }

    /// Tokens in any tier.
    pub fn tokens(&self) -> usize {
        self.device + self.host + self.storage
    }

    /// The tokens of the device tier that are worth as much: to load a page takes time too.
    pub fn worth(&self) -> usize {
        let slower = self.host as f64 * HOST_WORTH + self.storage as f64 * STORAGE_WORTH;
        self.device + slower as usize
    }
}

// === impl Prefixes ===

impl Prefixes {
    /// Each of the two indexes takes at most `max_bytes`.
    pub fn new(max_bytes: usize, pages_untold: usize) -> Self {
        Self {
            reported: KvIndex::new(max_bytes),
            sent: ApproximateIndex::new(SENT_PAGE_TOKENS, max_bytes),
            pages_untold,
            feeds: RwLock::default(),
        }
    }

    /// Who holds how much of the prompt's beginning; a worker that is not listed holds nothing.
    pub fn lookup(&self, prompt: &PromptKeys) -> Vec<Held> {
        let feeds = self.feeds.read();
        let is_exact = |target| feeds.get(&target).is_some_and(|feed| feed.is_exact);
        let (reported, sent) = (self.reported.lookup(prompt), self.sent.lookup(prompt));
        let reported = reported.iter().filter(|found| is_exact(found.target));
        let sent = sent.iter().filter(|found| !is_exact(found.target));
        reported.chain(sent).map(Held::of).collect()
    }

    /// Notes that the worker is sent the prompt.
    pub fn note_sent(&self, worker: WorkerId, prompt: &PromptKeys) {
        self.sent.insert(target(worker, 0), prompt);
    }

    /// What a worker was sent is remembered as far as its cache can hold it. `tokens`: of its KV pool, where it tells.
    pub fn set_capacity(&self, worker: WorkerId, tokens: Option<usize>) {
        let untold = self.pages_untold * SENT_PAGE_TOKENS.get() as usize;
        self.sent
            .set_capacity(target(worker, 0), tokens.unwrap_or(untold));
    }

    /// Takes in what a rank reports, and what became of it.
    pub fn report(&self, target: Target, events: &[KvEvent], feed: &mut EventFeed) {
        feed.count(self.reported.apply(target, events));
    }

    /// Says how far the reports of a rank can be relied on from now on.
    pub fn observe(&self, target: Target, feed: &EventFeed) {
        let state = FeedState {
            is_exact: feed.is_exact(),
            counters: feed.counters(),
        };
        self.feeds.write().insert(target, state);
    }

    /// The reports of a rank have ended: nothing of them counts any more.
    pub fn unfollow(&self, target: Target) {
        self.feeds.write().remove(&target);
        self.reported.forget(target);
    }

    /// Forgets what a worker was sent: it left, or lost its cache. What it reports says so by itself.
    pub fn forget_sent(&self, worker: WorkerId) {
        self.sent.forget(target(worker, 0));
    }

    /// Of each rank of a worker whose reports are followed.
    pub fn feeds_of(&self, worker: WorkerId) -> Vec<FeedState> {
        let feeds = self.feeds.read();
        let of_worker = feeds
            .iter()
            .filter(|(target, _)| target.worker == worker.number());
        of_worker.map(|(_, state)| *state).collect()
    }

    pub fn is_exact(&self, worker: WorkerId) -> bool {
        let feeds = self.feeds.read();
        let mut of_worker = feeds
            .iter()
            .filter(|(target, _)| target.worker == worker.number());
        of_worker.any(|(_, state)| state.is_exact)
    }

    pub fn reported_stats(&self) -> IndexStats {
        self.reported.stats()
    }

    pub fn sent_stats(&self) -> SentStats {
        SentStats {
            bytes: self.sent.bytes(),
            pages: self.sent.held_pages(),
            evicted: self.sent.evicted(),
        }
    }
}

pub(super) fn target(worker: WorkerId, rank: u32) -> Target {
    Target {
        worker: worker.number(),
        rank,
    }
}
