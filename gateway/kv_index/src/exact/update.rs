//! How events change the index.

use std::num::NonZeroU32;

use super::entries::{HeldEntry, spread};
use super::pages::{NewPage, Place};
use super::{Held, Inner};
use crate::event::{Applied, StoredBlocks, Tier};
use crate::holders::Change;
use crate::keys::PageKey;

/// Blocks of an event that are still to be stored.
pub(super) struct Blocks<'a> {
    stored: &'a StoredBlocks,
    page_size: NonZeroU32,
    done: usize,
    parent: PageKey,
    depth: u32,
    tick: u64,
    buffer: Vec<u8>,
}

impl Inner {
    /// Finds where the blocks go on. None: they cannot be taken, and are counted.
    pub fn begin<'a>(
        &mut self,
        slot: u32,
        stored: &'a StoredBlocks,
        tick: u64,
        applied: &mut Applied,
    ) -> Option<Blocks<'a>> {
        let count = stored.hashes.len() as u64;
        let Some(page_size) = self.page_size_of(slot, stored) else {
            applied.malformed += count;
            return None;
        };
        let before = stored.parent.map(|hash| self.held_place(slot, hash));
        let (parent, depth) = match before {
            None => (PageKey::root(&stored.namespace, page_size), 0),
            Some(Some(place)) => {
                self.pages.touch_up(place.run, tick);
                let run = self.pages.runs.get(place.run);
                (self.pages.page(place).key, run.start + place.offset as u32 + 1)
            }
            Some(None) => {
                applied.orphans += count;
                return None;
            }
        };
        Some(Blocks {
            stored,
            page_size,
            done: 0,
            parent,
            depth,
            tick,
            buffer: Vec::new(),
        })
    }

    /// Stores as many blocks as may be done now; returns whether some are left.
    pub fn store(
        &mut self,
        slot: u32,
        blocks: &mut Blocks<'_>,
        left: &mut usize,
        applied: &mut Applied,
    ) -> bool {
        let size = blocks.page_size.get() as usize;
        let rest = blocks
            .stored
            .hashes
            .iter()
            .zip(blocks.stored.tokens.chunks_exact(size));
        for (&hash, tokens) in rest.skip(blocks.done) {
            if *left == 0 {
                return true;
            }
            *left -= 1;
            let new = NewPage {
                key: blocks.parent.child_in(tokens, &mut blocks.buffer),
                parent: blocks.parent,
                depth: blocks.depth,
                page_size: blocks.page_size,
                hash,
            };
            if !self.store_page(slot, &new, blocks.stored.tier, blocks.tick) {
                applied.dropped += (blocks.stored.hashes.len() - blocks.done) as u64;
                return false;
            }
            applied.stored += 1;
            blocks.done += 1;
            blocks.depth += 1;
            blocks.parent = new.key;
        }
        false
    }

    /// Takes the page from the target, in one tier or in all; returns whether it was there.
    pub fn drop_hash(&mut self, slot: u32, hash: i64, tier: Option<Tier>) -> bool {
        let Some(low) = self.held_low(slot, hash) else {
            return false;
        };
        let place = self.pages.locate_held(low, slot);
        if let Some(place) = place {
            let change = match tier {
                Some(tier) if !self.pages.holders(place.run).has(slot, tier) => return false,
                Some(tier) => Change::Remove(slot, tier),
                None => Change::RemoveAll(slot),
            };
            self.pages.change(place, change);
        } else {
            self.with_held(slot, |held| held.stale = held.stale.saturating_sub(1));
        }
        if self.pages.locate_held(low, slot).is_none() {
            self.remove_entry(slot, hash, low);
        }
        self.shrink_to_limit();
        place.is_some()
    }

    /// Removes the entry if it leads to that page; returns whether it did.
    pub fn remove_entry(&mut self, slot: u32, hash: i64, low: u64) -> bool {
        self.with_held(slot, |held| {
            let is = |entry: &HeldEntry| entry.hash == hash && entry.low == low;
            held.entries.remove(spread(hash), is).is_some()
        })
        .unwrap_or(false)
    }

    /// Some of the target's entries; they are no longer in its table.
    pub fn take_some(&mut self, slot: u32) -> Option<impl Iterator<Item = HeldEntry> + use<>> {
        self.with_held(slot, |held| {
            held.stale = 0;
            held.entries.take_some()
        })?
    }

    /// The target holds nothing any more.
    pub fn remove_target(&mut self, slot: u32) {
        if let Some(held) = self.targets.remove(slot) {
            self.held_bytes -= held.entries.bytes();
        }
    }

    pub fn with_held<T>(&mut self, slot: u32, change: impl FnOnce(&mut Held) -> T) -> Option<T> {
        let held = self.targets.get_mut(slot)?;
        let before = held.entries.bytes();
        let result = change(held);
        self.held_bytes = self.held_bytes + held.entries.bytes() - before;
        Some(result)
    }

    fn page_size_of(&mut self, slot: u32, stored: &StoredBlocks) -> Option<NonZeroU32> {
        let page_size = NonZeroU32::new(stored.block_size)?;
        let held = self.targets.get_mut(slot)?;
        if stored.hashes.len().checked_mul(page_size.get() as usize)? != stored.tokens.len() {
            return None;
        }
        if held.entries.len() == 0 {
            held.page_size = Some(page_size);
        }
        held.page_size.filter(|known| *known == page_size)
    }

    fn held_low(&self, slot: u32, hash: i64) -> Option<u64> {
        let entries = &self.targets.get(slot)?.entries;
        Some(entries.find(spread(hash), |entry| entry.hash == hash)?.low)
    }

    fn held_place(&self, slot: u32, hash: i64) -> Option<Place> {
        self.pages.locate_held(self.held_low(slot, hash)?, slot)
    }

    /// False: there is no room for the page, or the page before it had to go.
    fn store_page(&mut self, slot: u32, new: &NewPage, tier: Tier, tick: u64) -> bool {
        match self.held_low(slot, new.hash) {
            Some(low) if low == new.key.low => {}
            Some(_) => {
                // The worker uses the hash for another page now.
                self.drop_hash(slot, new.hash, None);
                return self.store_page_anew(slot, new, tier, tick);
            }
            None => return self.store_page_anew(slot, new, tier, tick),
        }
        self.hold(slot, new, tier, tick)
    }

    fn store_page_anew(&mut self, slot: u32, new: &NewPage, tier: Tier, tick: u64) -> bool {
        if !self.make_room(slot, new) {
            return false;
        }
        let (hash, low) = (new.hash, new.key.low);
        let entered = self.with_held(slot, |held| held.entries.insert(HeldEntry { hash, low }));
        let is_held = entered.is_some() && self.hold(slot, new, tier, tick);
        if !is_held {
            self.remove_entry(slot, hash, low);
        }
        is_held
    }

    fn hold(&mut self, slot: u32, new: &NewPage, tier: Tier, tick: u64) -> bool {
        let run = if let Some(place) = self.pages.locate(new.key) {
            self.pages.runs.get(place.run).touch(tick);
            self.pages.change(place, Change::Add(slot, tier));
            place.run
        } else {
            if !self.make_room(slot, new) {
                return false;
            }
            self.pages.insert(new, slot, tier)
        };
        self.pages.runs.get(run).touch(tick);
        self.shrink_to_limit();
        true
    }
}
