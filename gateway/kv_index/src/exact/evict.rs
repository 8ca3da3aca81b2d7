//! What goes when memory is short.

use super::Inner;
use super::entries::spread;
use super::pages::{NewPage, Place};

/// Pages that one eviction takes at most.
const BATCH: usize = 64;
/// A target's stale entries are searched for when they are more than this, and than a quarter of all.
const MANY_STALE: usize = 64;

impl Inner {
    pub fn bytes(&self) -> usize {
        self.pages.bytes() + self.held_bytes + self.targets.bytes()
    }

    /// Evicts until the page and the target's entry for it fit; false if that would take the page before it.
    pub fn make_room(&mut self, slot: u32, new: &NewPage) -> bool {
        let before = self.evicted;
        while self.bytes() + self.growth(slot, new) > self.limit {
            if !self.evict() {
                return false;
            }
        }
        before == self.evicted || new.depth == 0 || self.pages.locate(new.parent).is_some()
    }

    /// The same for what was changed already.
    pub fn shrink_to_limit(&mut self) {
        while self.bytes() > self.limit && self.evict() {}
    }

    fn growth(&self, slot: u32, new: &NewPage) -> usize {
        let held = self.targets.get(slot);
        let entry = held.map_or(0, |held| held.entries.growth(spread(new.hash)));
        entry.max(self.pages.table.growth(new.key.low))
    }

    /// Frees some memory: that of places where nothing is, or that of the last pages of a run that was not used for long.
    /// False: there is nothing any more.
    fn evict(&mut self) -> bool {
        if self.pages.waste() > self.limit / 8 {
            self.pages.compact();
            return true;
        }
        let Some(run) = self.pages.runs.least_used() else {
            return false;
        };
        let slots: Vec<u32> = self.pages.holders(run).slots().collect();
        let len = self.pages.runs.get(run).len();
        let first = len.saturating_sub(BATCH);
        for offset in (first..len).rev() {
            let place = Place { run, offset };
            let page = self.pages.page(place);
            for &slot in &slots {
                if !self.remove_entry(slot, page.hash, page.key.low) {
                    self.note_stale(slot);
                }
            }
            self.pages.delete(place);
            self.evicted += 1;
        }
        true
    }

    /// The target calls the evicted page by another hash than the first target that reported it.
    fn note_stale(&mut self, slot: u32) {
        let is_due = self.with_held(slot, |held| {
            held.stale += 1;
            held.stale > MANY_STALE && held.stale * 4 > held.entries.len()
        });
        if is_due != Some(true) {
            return;
        }
        let Some(held) = self.targets.get_mut(slot) else {
            return;
        };
        let (pages, before) = (&self.pages, held.entries.bytes());
        // The page that is being evicted is still there, and found again by the next search.
        held.entries
            .retain(|entry| pages.locate_held(entry.low, slot).is_some());
        held.stale = 0;
        self.held_bytes = self.held_bytes + held.entries.bytes() - before;
    }
}
