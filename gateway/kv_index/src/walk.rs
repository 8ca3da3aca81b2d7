//! Follows the targets that hold all pages of a prompt so far.

use std::num::NonZeroU32;

use crate::holders::{Group, Holders, any, bits};
use crate::{PrefixMatch, Target};

/// A target's pages are counted when its tier changes or it drops out, not at every step.
pub(crate) struct Walk {
    /// Targets by the fastest tier that has the present page.
    current: Vec<Group>,
    started: bool,
    /// Where each target's present tier began.
    since: Vec<u32>,
    pages: Vec<[u32; 3]>,
}

impl Walk {
    pub fn new(slots: usize) -> Self {
        Self {
            current: vec![[0; 3]; slots.div_ceil(64)],
            started: false,
            since: vec![0; slots],
            pages: vec![[0; 3]; slots],
        }
    }

    /// The page at `depth` has these holders; returns whether some target holds all up to it.
    pub fn step(&mut self, holders: &Holders, depth: usize) -> bool {
        let mut alive = 0;
        for index in 0..self.current.len() {
            let before = self.current[index];
            if self.started && any(before) == 0 {
                continue;
            }
            let allowed = if self.started { any(before) } else { u64::MAX };
            let [device, host, storage] = holders.group(index).map(|word| word & allowed);
            let now = [device, host & !device, storage & !device & !host];
            self.count(index, before, now, depth);
            self.current[index] = now;
            alive |= any(now);
        }
        self.started = true;
        alive != 0
    }

    /// The page at `depth` is the first that is not there.
    pub fn end(
        mut self,
        depth: usize,
        page_size: NonZeroU32,
        target_of: impl Fn(u32) -> Option<Target>,
    ) -> impl Iterator<Item = PrefixMatch> {
        for index in 0..self.current.len() {
            self.count(index, self.current[index], [0; 3], depth);
        }
        let tokens = move |pages: u32| pages as usize * page_size.get() as usize;
        let counted = (0..).zip(self.pages).filter(|(_, pages)| *pages != [0; 3]);
        counted.filter_map(move |(slot, [device, host, storage])| {
            Some(PrefixMatch {
                target: target_of(slot)?,
                device_tokens: tokens(device),
                host_tokens: tokens(host),
                storage_tokens: tokens(storage),
            })
        })
    }

    fn count(&mut self, index: usize, before: Group, now: Group, depth: usize) {
        for tier in 0..3 {
            for bit in bits(before[tier] & !now[tier]) {
                let slot = index * 64 + bit as usize;
                self.pages[slot][tier] += depth as u32 - self.since[slot];
            }
        }
        let moved = (0..3).fold(0, |moved, tier| moved | (before[tier] ^ now[tier]));
        for bit in bits(moved & any(now)) {
            self.since[index * 64 + bit as usize] = depth as u32;
        }
    }
}
