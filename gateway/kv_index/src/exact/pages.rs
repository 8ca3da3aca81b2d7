//! The pages, the runs that they form, and the moves between runs when holders change.

use std::num::NonZeroU32;

use super::entries::PageEntry;
use super::runs::{MAX_RUN_PAGES, NONE, Page, Run, Runs};
use crate::event::Tier;
use crate::holders::{Change, HolderSets, Holders, SetId};
use crate::keys::PageKey;
use crate::tables::Sharded;

/// A page's place in its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub run: u32,
    pub offset: usize,
}

/// A page to be stored, with what it follows.
pub(super) struct NewPage {
    pub key: PageKey,
    pub parent: PageKey,
    pub depth: u32,
    pub page_size: NonZeroU32,
    pub hash: i64,
}

#[derive(Default)]
pub(super) struct Pages {
    pub table: Sharded<PageEntry>,
    pub runs: Runs,
    pub sets: HolderSets,
}

impl Pages {
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.runs.bytes() + self.sets.bytes()
    }

    pub fn locate(&self, key: PageKey) -> Option<Place> {
        let is = |entry: &PageEntry| entry.low == key.low && self.page(self.place(entry)).key == key;
        self.table.find(key.low, is).map(|entry| self.place(entry))
    }

    /// Some page of that lower half that the target holds.
    pub fn locate_held(&self, low: u64, slot: u32) -> Option<Place> {
        let is = |entry: &PageEntry| entry.low == low && self.holders(entry.run).has_any(slot);
        self.table.find(low, is).map(|entry| self.place(entry))
    }

    pub fn holders(&self, run: u32) -> &Holders {
        self.sets.get(self.runs.get(run).set)
    }

    pub fn page(&self, place: Place) -> Page {
        self.runs.get(place.run).pages[place.offset]
    }

    /// Notes the use of the run and of all before it.
    pub fn touch_up(&self, mut run: u32, tick: u64) {
        for _ in 0..self.runs.live() {
            let at = self.runs.get(run);
            if at.touch(tick) || at.start == 0 {
                return;
            }
            let Some(before) = self.locate(at.parent) else {
                return;
            };
            run = before.run;
        }
    }

    /// The page must not be there.
    pub fn insert(&mut self, new: &NewPage, slot: u32, tier: Tier) -> u32 {
        let set = self.sets.changed(SetId::EMPTY, Change::Add(slot, tier));
        let before = self.locate_parent(new.parent, new.depth);
        let run = match before {
            Some(place) if self.takes_after(place, set) => place.run,
            _ => self.start_run(Run::new(new.parent, new.depth, new.page_size, set)),
        };
        if let Some(place) = before.filter(|place| place.run != run) {
            self.runs.get_mut(place.run).next = run;
        }
        self.table.insert(PageEntry {
            low: new.key.low,
            run,
            depth: new.depth,
        });
        self.runs.push_back(
            run,
            Page {
                key: new.key,
                hash: new.hash,
            },
        );
        run
    }

    /// Changes who holds the page; one that nobody holds goes.
    pub fn change(&mut self, place: Place, change: Change) {
        let from = self.runs.get(place.run).set;
        let to = self.sets.changed(from, change);
        if to == SetId::EMPTY {
            self.delete(place);
        } else if to != from {
            self.regroup(place, to);
        }
    }

    pub fn delete(&mut self, place: Place) {
        let Place { run, offset } = self.edge(place);
        let depth = self.runs.get(run).start + offset as u32;
        let popped = if offset == 0 {
            self.runs.pop_front(run)
        } else {
            self.runs.pop_back(run)
        };
        if let Some(page) = popped {
            let is = |entry: &PageEntry| is_at(entry, page.key.low, run, depth);
            self.table.remove(page.key.low, is);
        }
        self.end_if_empty(run);
    }

    /// Bytes that [`compact`](Self::compact) wins back.
    pub fn waste(&self) -> usize {
        self.runs.waste() + self.sets.waste()
    }

    /// Closes the places of runs and sets that are gone. No [`Place`] holds afterwards.
    pub fn compact(&mut self) {
        let sets = self.sets.compact();
        let runs = self.runs.compact();
        for run in self.runs.iter_mut() {
            run.set = run.set.after(&sets);
        }
        for entry in self.table.iter_mut() {
            entry.run = runs[entry.run as usize];
        }
    }

    fn place(&self, entry: &PageEntry) -> Place {
        let offset = (entry.depth - self.runs.get(entry.run).start) as usize;
        Place {
            run: entry.run,
            offset,
        }
    }

    fn locate_parent(&self, parent: PageKey, depth: u32) -> Option<Place> {
        if depth == 0 { None } else { self.locate(parent) }
    }

    /// Whether a page of that set may join the run behind the page at `place`.
    fn takes_after(&self, place: Place, set: SetId) -> bool {
        let run = self.runs.get(place.run);
        place.offset + 1 == run.len() && run.set == set && run.len() < MAX_RUN_PAGES
    }

    fn start_run(&mut self, run: Run) -> u32 {
        self.sets.keep(run.set);
        self.runs.insert(run)
    }

    fn end_if_empty(&mut self, run: u32) {
        if self.runs.get(run).len() == 0 {
            self.sets.release(self.runs.get(run).set);
            self.runs.remove(run);
        }
    }

    /// Moves the page into a run of that set: a neighbour where one fits, or a new one.
    fn regroup(&mut self, place: Place, to: SetId) {
        let Place { run, offset } = self.edge(place);
        let at = self.runs.get(run);
        let (start, parent, next, len) = (at.start, at.parent, at.next, at.len());
        if offset > 0 {
            let right = self.right_of(run, to).unwrap_or_else(|| {
                let new = self.start_run(self.runs.get(run).part(start + len as u32, to));
                self.runs.get_mut(new).next = next;
                self.runs.get_mut(run).next = new;
                new
            });
            self.move_back(run, right);
            return;
        }
        let left = self
            .locate_parent(parent, start)
            .filter(|place| self.takes_after(*place, to));
        if let Some(left) = left {
            self.move_front(run, left.run);
            self.join(left.run);
        } else if len == 1 {
            self.sets.keep(to);
            let from = std::mem::replace(&mut self.runs.get_mut(run).set, to);
            self.sets.release(from);
            self.join(run);
        } else {
            let new = self.start_run(self.runs.get(run).part(start, to));
            self.runs.get_mut(new).next = run;
            self.move_front(run, new);
        }
    }

    /// The run that goes on after the last page of `run`, if it is known, of that set and not full.
    fn right_of(&self, run: u32, set: SetId) -> Option<u32> {
        let at = self.runs.get(run);
        if at.next == NONE {
            return None;
        }
        let right = self.runs.get(at.next);
        let follows =
            right.len() > 0 && right.parent == at.last_key() && right.start == at.start + at.len() as u32;
        (follows && right.set == set && right.len() < MAX_RUN_PAGES).then_some(at.next)
    }

    /// One run of two that could be one.
    fn join(&mut self, left: u32) {
        let Some(right) = self.right_of(left, self.runs.get(left).set) else {
            return;
        };
        let (left_len, right_len) = (self.runs.get(left).len(), self.runs.get(right).len());
        if left_len + right_len > MAX_RUN_PAGES {
            return;
        }
        for _ in 0..left_len.min(right_len) {
            if left_len < right_len {
                self.move_back(left, right);
            } else {
                self.move_front(right, left);
            }
        }
    }

    /// The last page of `run` becomes the first one of `right`.
    fn move_back(&mut self, run: u32, right: u32) {
        let Some(page) = self.runs.pop_back(run) else {
            return;
        };
        self.runs.push_front(right, page);
        let before = self.runs.get(run).last_key();
        self.runs.get_mut(right).parent = before;
        self.now_in(page, run, right, self.runs.get(right).start);
        self.end_if_empty(run);
    }

    /// The first page of `run` becomes the last one of `left`.
    fn move_front(&mut self, run: u32, left: u32) {
        let Some(page) = self.runs.pop_front(run) else {
            return;
        };
        self.runs.push_back(left, page);
        let to = self.runs.get(left);
        let depth = to.start + to.len() as u32 - 1;
        self.now_in(page, run, left, depth);
        if self.runs.get(run).len() == 0 {
            self.runs.get_mut(left).next = self.runs.get(run).next;
        }
        self.end_if_empty(run);
    }

    fn now_in(&mut self, page: Page, from: u32, to: u32, depth: u32) {
        let is = |entry: &PageEntry| is_at(entry, page.key.low, from, depth);
        if let Some(entry) = self.table.find_mut(page.key.low, is) {
            entry.run = to;
        }
    }

    /// Cuts the run so that the page is the first or the last one of a run.
    fn edge(&mut self, place: Place) -> Place {
        let Place { run, offset } = place;
        let at = self.runs.get(run);
        let (len, start, set, next) = (at.len(), at.start, at.set, at.next);
        if offset == 0 || offset + 1 == len {
            return place;
        }
        if offset < len / 2 {
            let head = self.start_run(self.runs.get(run).part(start, set));
            for _ in 0..offset {
                self.move_front(run, head);
            }
            self.runs.get_mut(head).next = run;
            return Place { run, offset: 0 };
        }
        let tail = self.start_run(self.runs.get(run).part(start + len as u32, set));
        for _ in offset..len {
            self.move_back(run, tail);
        }
        self.runs.get_mut(tail).next = next;
        self.runs.get_mut(run).next = tail;
        Place { run: tail, offset: 0 }
    }
}

fn is_at(entry: &PageEntry, low: u64, run: u32, depth: u32) -> bool {
    entry.low == low && entry.run == run && entry.depth == depth
}
