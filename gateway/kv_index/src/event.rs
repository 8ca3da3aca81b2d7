//! What a worker reports of its prefix cache.

/// Where a page lies, fastest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    Device,
    Host,
    /// Disk, or a store outside the worker.
    Storage,
}

impl Tier {
    pub const ALL: [Self; 3] = [Self::Device, Self::Host, Self::Storage];
}

/// One change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEvent {
    Stored(StoredBlocks),
    Removed(RemovedBlocks),
    /// Every page is gone from every tier.
    Cleared,
}

/// Consecutive pages that can be reused from now on. Pages that are not the worker's own, or that stand for less
/// than the whole prefix (sliding windows), are no business of an index: leave them out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlocks {
    pub tier: Tier,
    /// Adapter or cache salt, as in [`PromptKeys::new`](crate::PromptKeys::new). Read where `parent` is unset: a later
    /// page is in the namespace of the page before it.
    pub namespace: String,
    /// The worker's hash of the page before the first one; unset at the start of a prompt.
    pub parent: Option<i64>,
    /// Tokens of a page.
    pub block_size: u32,
    /// The worker's hashes. Any numbers: they only have to be different within the worker.
    pub hashes: Vec<i64>,
    /// Of all pages in a row: `block_size` for each hash.
    pub tokens: Vec<u32>,
}

/// Pages that are gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedBlocks {
    /// From this tier; unset: from all.
    pub tier: Option<Tier>,
    pub hashes: Vec<i64>,
}

/// What became of the pages in some events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Held now, whether or not they were before.
    pub stored: u64,
    pub removed: u64,
    /// Not taken: the page before them is unknown.
    pub orphans: u64,
    /// Not taken: no memory could be freed for them.
    pub dropped: u64,
    /// Not taken: no page size, another page size than the target's, or too few tokens.
    pub malformed: u64,
}

impl std::ops::AddAssign for Applied {
    fn add_assign(&mut self, other: Self) {
        self.stored += other.stored;
        self.removed += other.removed;
        self.orphans += other.orphans;
        self.dropped += other.dropped;
        self.malformed += other.malformed;
    }
}
