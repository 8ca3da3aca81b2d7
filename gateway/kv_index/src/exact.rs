//! The index of what workers report.
//!
//! A target's own hash of a page leads to the page's key, so the hashes of two workers never meet. Pages that
//! follow each other and have the same holders form a run; a run is cut where its holders part and grows together
//! where they are equal again. A lookup compares the prompt with whole runs and looks at holders once a run.
//!
//! Under the byte limit, the pages at the end of a run that was used longest ago go first: the beginning of a prompt
//! is of use without its end, but not the other way round. To be looked up or stored again is a use.

pub(crate) mod entries;
mod evict;
mod lookup;
mod pages;
mod runs;
mod update;

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::event::{Applied, KvEvent};
use crate::holders::Change;
use crate::slots::Slots;
use crate::tables::Sharded;
use crate::{PrefixLookup, PrefixMatch, PromptKeys, Target};
use entries::HeldEntry;
use pages::Pages;

/// Pages that are changed before a waiting lookup may go first.
const SLICE: usize = 64;
/// The limit is at least this.
const MIN_LIMIT: usize = 64 << 10;

/// Which target holds which pages, in which tiers. Shared between tasks: changes go one after the other, and lookups
/// in between.
pub struct KvIndex {
    /// Held during a change, also while lookups go first.
    changing: Mutex<()>,
    inner: RwLock<Inner>,
    /// Counts uses.
    clock: AtomicU64,
}

/// Sizes of an index now, and what it had to give up so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexStats {
    pub targets: usize,
    /// Different pages.
    pub pages: usize,
    /// Pages, each counted once for each target that holds it.
    pub held_pages: usize,
    pub runs: usize,
    pub bytes: usize,
    /// Pages that went for want of memory.
    pub evicted: u64,
}

struct Inner {
    pages: Pages,
    targets: Slots<Held>,
    held_bytes: usize,
    limit: usize,
    evicted: u64,
}

/// What one target holds.
#[derive(Default)]
struct Held {
    entries: Sharded<HeldEntry>,
    page_size: Option<NonZeroU32>,
    /// Entries whose page was evicted; they are searched for when there are many.
    stale: usize,
}

impl KvIndex {
    /// Takes at most `max_bytes` of memory, or 64 KiB if that is more.
    pub fn new(max_bytes: usize) -> Self {
        let max_bytes = max_bytes.max(MIN_LIMIT);
        Self {
            changing: Mutex::new(()),
            inner: RwLock::new(Inner {
                pages: Pages::default(),
                targets: Slots::default(),
                held_bytes: 0,
                // The rest is for what exists twice while it is moved.
                limit: max_bytes - max_bytes / 16,
                evicted: 0,
            }),
            clock: AtomicU64::new(0),
        }
    }

    /// Takes in what a target reports, in order.
    pub fn apply(&self, target: Target, events: &[KvEvent]) -> Applied {
        let mut applied = Applied::default();
        let _changing = self.changing.lock();
        let mut inner = self.inner.write();
        let tick = self.tick();
        let slot = inner.targets.number_or_insert(target, Held::default);
        let mut left = SLICE;
        for event in events {
            match event {
                KvEvent::Stored(stored) => {
                    let Some(mut blocks) = inner.begin(slot, stored, tick, &mut applied) else {
                        continue;
                    };
                    while inner.store(slot, &mut blocks, &mut left, &mut applied) {
                        yield_to_lookups(&mut inner, &mut left);
                    }
                }
                KvEvent::Removed(removed) => {
                    for &hash in &removed.hashes {
                        applied.removed += u64::from(inner.drop_hash(slot, hash, removed.tier));
                        left -= 1;
                        if left == 0 {
                            yield_to_lookups(&mut inner, &mut left);
                        }
                    }
                }
                KvEvent::Cleared => clear(&mut inner, slot),
            }
        }
        inner.shrink_to_limit();
        applied
    }

    /// Page sizes of the pages that are held: the lookup asks a prompt for these keys.
    pub fn page_sizes(&self) -> Vec<NonZeroU32> {
        self.inner.read().pages.runs.page_sizes().collect()
    }

    pub fn stats(&self) -> IndexStats {
        let inner = self.inner.read();
        IndexStats {
            targets: inner.targets.iter().count(),
            pages: inner.pages.table.len(),
            held_pages: inner
                .targets
                .iter()
                .map(|(_, held)| held.entries.len() - held.stale.min(held.entries.len()))
                .sum(),
            runs: inner.pages.runs.live(),
            bytes: inner.bytes(),
            evicted: inner.evicted,
        }
    }

    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, Relaxed) + 1
    }
}

impl PrefixLookup for KvIndex {
    fn lookup(&self, prompt: &PromptKeys) -> Vec<PrefixMatch> {
        let mut found = Vec::new();
        for size in self.page_sizes() {
            let paged = prompt.paged(size);
            self.inner.read().lookup(&paged, self.tick(), &mut found);
        }
        found
    }

    fn forget(&self, target: Target) {
        let _changing = self.changing.lock();
        let mut inner = self.inner.write();
        if let Some(slot) = inner.targets.number(target) {
            clear(&mut inner, slot);
            inner.remove_target(slot);
        }
    }
}

fn yield_to_lookups(inner: &mut RwLockWriteGuard<'_, Inner>, left: &mut usize) {
    RwLockWriteGuard::bump(inner);
    *left = SLICE;
}

/// Afterwards the target holds nothing.
fn clear(inner: &mut RwLockWriteGuard<'_, Inner>, slot: u32) {
    let mut left = SLICE;
    while let Some(entries) = inner.take_some(slot) {
        for entry in entries {
            if let Some(place) = inner.pages.locate_held(entry.low, slot) {
                inner.pages.change(place, Change::RemoveAll(slot));
            }
            left -= 1;
            if left == 0 {
                yield_to_lookups(inner, &mut left);
            }
        }
    }
}

#[cfg(test)]
mod tests;
