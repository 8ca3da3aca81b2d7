//! The index of what workers were sent, for workers that do not tell what their cache holds.

mod recent;

use std::num::NonZeroU32;

use parking_lot::{Mutex, RwLock, RwLockWriteGuard};

use crate::event::Tier;
use crate::holders::{Change, HolderSets, SetId};
use crate::slots::Slots;
use crate::tables::{Hashed, Sharded};
use crate::walk::Walk;
use crate::{PrefixLookup, PrefixMatch, PromptKeys, Target};
use recent::Recent;

/// Pages that are changed before a waiting lookup may go first.
const SLICE: usize = 64;

/// Tokens of a page of what was sent, where workers do not say what theirs are.
pub const SENT_PAGE_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

/// Which target was sent which pages. Shared between tasks: changes go one after the other, and lookups in between.
///
/// To be sent is a use. A target that has as many pages as its cache takes loses the one that was used longest ago;
/// within a prompt that is the last one. Where all together need more memory than they may, the target whose oldest
/// page is the oldest of all loses it.
pub struct ApproximateIndex {
    page_size: NonZeroU32,
    /// Held during a change, also while lookups go first.
    changing: Mutex<()>,
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    holders: Sharded<HoldersEntry>,
    sets: HolderSets,
    targets: Slots<Recent>,
    recent_bytes: usize,
    /// Counts uses of pages.
    clock: u64,
    limit: usize,
    evicted: u64,
}

/// A page, and the targets that were sent it.
struct HoldersEntry {
    low: u64,
    set: SetId,
}

impl Hashed for HoldersEntry {
    fn hash(&self) -> u64 {
        self.low
    }
}

impl ApproximateIndex {
    /// Takes at most `max_bytes` of memory, or 64 KiB if that is more.
    pub fn new(page_size: NonZeroU32, max_bytes: usize) -> Self {
        let max_bytes = max_bytes.max(64 << 10);
        Self {
            page_size,
            changing: Mutex::new(()),
            inner: RwLock::new(Inner {
                // The rest is for what exists twice while it is moved.
                limit: max_bytes - max_bytes / 16,
                ..Inner::default()
            }),
        }
    }

    /// Tells how many tokens the target's cache takes (`max_total_num_tokens`). Until then only memory bounds it.
    pub fn set_capacity(&self, target: Target, tokens: usize) {
        let _changing = self.changing.lock();
        let mut inner = self.inner.write();
        let slot = inner.targets.number_or_insert(target, Recent::default);
        let capacity = (tokens / self.page_size.get() as usize).max(1);
        inner.with_recent(slot, |recent| recent.capacity = capacity);
        shrink_to_capacity(&mut inner, slot);
    }

    /// Notes that the target is sent this prompt.
    pub fn insert(&self, target: Target, prompt: &PromptKeys) {
        let paged = prompt.paged(self.page_size);
        let _changing = self.changing.lock();
        let mut inner = self.inner.write();
        let slot = inner.targets.number_or_insert(target, Recent::default);
        let capacity = inner.targets.get(slot).map_or(0, |recent| recent.capacity);
        let kept = &paged.keys()[..paged.keys().len().min(capacity)];
        // From the end to the start: a page is then always more recent than those that follow it.
        for (done, key) in kept.iter().rev().enumerate() {
            inner.touch(slot, key.low);
            if done % SLICE == SLICE - 1 {
                RwLockWriteGuard::bump(&mut inner);
            }
        }
        shrink_to_capacity(&mut inner, slot);
    }

    /// Bytes in use.
    pub fn bytes(&self) -> usize {
        self.inner.read().bytes()
    }

    /// Pages, each counted once for each target that was sent it.
    pub fn held_pages(&self) -> usize {
        self.inner
            .read()
            .targets
            .iter()
            .map(|(_, recent)| recent.len())
            .sum()
    }

    /// Pages that went for want of memory.
    pub fn evicted(&self) -> u64 {
        self.inner.read().evicted
    }
}

impl PrefixLookup for ApproximateIndex {
    fn lookup(&self, prompt: &PromptKeys) -> Vec<PrefixMatch> {
        let paged = prompt.paged(self.page_size);
        let inner = self.inner.read();
        let mut walk = Walk::new(inner.targets.len());
        let mut last = SetId::EMPTY;
        let mut depth = 0;
        for key in paged.keys() {
            let Some(entry) = inner.holders.find(key.low, |entry| entry.low == key.low) else {
                break;
            };
            if entry.set != last && !walk.step(inner.sets.get(entry.set), depth) {
                break;
            }
            last = entry.set;
            depth += 1;
        }
        walk.end(depth, self.page_size, |slot| inner.targets.target(slot))
            .collect()
    }

    fn forget(&self, target: Target) {
        let _changing = self.changing.lock();
        let mut inner = self.inner.write();
        let Some(slot) = inner.targets.number(target) else {
            return;
        };
        inner.with_recent(slot, |recent| recent.capacity = 0);
        shrink_to_capacity(&mut inner, slot);
        if let Some(recent) = inner.targets.remove(slot) {
            inner.recent_bytes -= recent.bytes();
        }
    }
}

fn shrink_to_capacity(inner: &mut RwLockWriteGuard<'_, Inner>, slot: u32) {
    let surplus = |recent: &Recent| recent.len().saturating_sub(recent.capacity);
    for done in 0..inner.targets.get(slot).map_or(0, surplus) {
        inner.pop_oldest(slot);
        if done % SLICE == SLICE - 1 {
            RwLockWriteGuard::bump(inner);
        }
    }
}

impl Inner {
    fn bytes(&self) -> usize {
        self.holders.bytes() + self.sets.bytes() + self.targets.bytes() + self.recent_bytes
    }

    fn touch(&mut self, slot: u32, low: u64) {
        self.clock += 1;
        let clock = self.clock;
        let is_known = self.with_recent(slot, |recent| recent.touch(low, clock));
        if is_known != Some(true) && self.make_room(slot, low) {
            self.insert(slot, low, clock);
        }
        while self.bytes() > self.limit && self.evict() {}
    }

    fn insert(&mut self, slot: u32, low: u64, clock: u64) {
        self.with_recent(slot, |recent| recent.insert(low, clock));
        let from = self
            .holders
            .find(low, |entry| entry.low == low)
            .map(|entry| entry.set);
        let to = self
            .sets
            .changed(from.unwrap_or(SetId::EMPTY), Change::Add(slot, Tier::Device));
        self.sets.keep(to);
        match from {
            Some(from) => self.replace(low, from, to),
            None => self.holders.insert(HoldersEntry { low, set: to }),
        }
    }

    fn replace(&mut self, low: u64, from: SetId, to: SetId) {
        if let Some(entry) = self.holders.find_mut(low, |entry| entry.low == low) {
            entry.set = to;
        }
        self.sets.release(from);
    }

    fn make_room(&mut self, slot: u32, low: u64) -> bool {
        loop {
            let recent = self.targets.get(slot).map_or(0, |recent| recent.growth(low));
            if self.bytes() + recent.max(self.holders.growth(low)) <= self.limit {
                return true;
            }
            if !self.evict() {
                return false;
            }
        }
    }

    /// Takes the oldest pages of all that one target has; false if there are none.
    fn evict(&mut self) -> bool {
        if self.sets.waste() > self.limit / 8 {
            let moved = self.sets.compact();
            for entry in self.holders.iter_mut() {
                entry.set = entry.set.after(&moved);
            }
            return true;
        }
        let mut oldest: Option<(u64, u32)> = None;
        let mut second = u64::MAX;
        for (slot, recent) in self.targets.iter() {
            let Some(used) = recent.oldest() else {
                continue;
            };
            match oldest {
                Some((known, _)) if used > known => second = second.min(used),
                _ => {
                    second = oldest.map_or(second, |(known, _)| second.min(known));
                    oldest = Some((used, slot));
                }
            }
        }
        let Some((_, slot)) = oldest else {
            return false;
        };
        for _ in 0..SLICE {
            if self
                .targets
                .get(slot)
                .and_then(Recent::oldest)
                .is_none_or(|used| used > second)
            {
                break;
            }
            self.pop_oldest(slot);
            self.evicted += 1;
        }
        true
    }

    fn pop_oldest(&mut self, slot: u32) -> Option<()> {
        let low = self.with_recent(slot, Recent::pop_oldest)??;
        let from = self.holders.find(low, |entry| entry.low == low)?.set;
        let to = self.sets.changed(from, Change::RemoveAll(slot));
        if to == SetId::EMPTY {
            self.holders.remove(low, |entry| entry.low == low);
            self.sets.release(from);
        } else {
            self.sets.keep(to);
            self.replace(low, from, to);
        }
        Some(())
    }

    fn with_recent<T>(&mut self, slot: u32, change: impl FnOnce(&mut Recent) -> T) -> Option<T> {
        let recent = self.targets.get_mut(slot)?;
        let before = recent.bytes();
        let result = change(recent);
        self.recent_bytes = self.recent_bytes + recent.bytes() - before;
        Some(result)
    }
}

#[cfg(test)]
mod tests;
