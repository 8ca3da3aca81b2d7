//! Runs: consecutive pages that the same targets hold in the same tiers.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::chunked::Chunked;
use crate::holders::SetId;
use crate::keys::PageKey;

/// A longer one goes on as another, so that to cut a run stays cheap.
pub(super) const MAX_RUN_PAGES: usize = 512;
/// No run.
pub(super) const NONE: u32 = u32::MAX;
/// Runs among which the least recently used one is looked for.
const SAMPLE: usize = 16;

#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub key: PageKey,
    /// What the first target that reported it calls it.
    pub hash: i64,
}

pub(super) struct Run {
    pub pages: VecDeque<Page>,
    /// The page before the first one, or the root of the prompt.
    pub parent: PageKey,
    /// Pages before the first one.
    pub start: u32,
    pub page_size: NonZeroU32,
    pub set: SetId,
    /// A run that began after the last page once. It may have gone or changed: compare its parent.
    pub next: u32,
    used: AtomicU64,
}

impl Run {
    pub fn new(parent: PageKey, start: u32, page_size: NonZeroU32, set: SetId) -> Self {
        Self {
            pages: VecDeque::new(),
            parent,
            start,
            page_size,
            set,
            next: NONE,
            used: AtomicU64::new(0),
        }
    }

    /// An empty run for pages that leave this one.
    pub fn part(&self, start: u32, set: SetId) -> Self {
        Self {
            used: AtomicU64::new(self.used.load(Relaxed)),
            ..Self::new(self.parent, start, self.page_size, set)
        }
    }

    pub fn len(&self) -> usize {
        self.pages.len()
    }

    /// The key before page `offset`.
    pub fn key_before(&self, offset: usize) -> PageKey {
        match offset.checked_sub(1) {
            Some(place) => self.pages[place].key,
            None => self.parent,
        }
    }

    pub fn last_key(&self) -> PageKey {
        self.key_before(self.len())
    }

    /// Notes the use at that tick; returns whether it was noted already.
    pub fn touch(&self, tick: u64) -> bool {
        let known = self.used.load(Relaxed) == tick;
        if !known {
            self.used.store(tick, Relaxed);
        }
        known
    }
}

/// All runs. One without pages is free.
#[derive(Default)]
pub(super) struct Runs {
    runs: Chunked<Run>,
    free: Vec<u32>,
    page_bytes: usize,
    hand: usize,
    /// Page sizes in use, with the number of their runs.
    sizes: Vec<(NonZeroU32, usize)>,
}

impl Runs {
    pub fn get(&self, run: u32) -> &Run {
        &self.runs[run as usize]
    }

    pub fn get_mut(&mut self, run: u32) -> &mut Run {
        &mut self.runs[run as usize]
    }

    /// Numbers given so far, free ones included.
    #[cfg(test)]
    pub fn slots(&self) -> usize {
        self.runs.len()
    }

    pub fn live(&self) -> usize {
        self.runs.len() - self.free.len()
    }

    pub fn bytes(&self) -> usize {
        self.runs.bytes() + self.free.capacity() * 4 + self.page_bytes
    }

    pub fn page_sizes(&self) -> impl Iterator<Item = NonZeroU32> {
        self.sizes.iter().map(|(size, _)| *size)
    }

    /// The caller puts a page in at once.
    pub fn insert(&mut self, run: Run) -> u32 {
        match self.sizes.iter_mut().find(|(size, _)| *size == run.page_size) {
            Some((_, count)) => *count += 1,
            None => self.sizes.push((run.page_size, 1)),
        }
        if let Some(number) = self.free.pop() {
            self.runs[number as usize] = run;
            return number;
        }
        self.runs.push(run);
        self.runs.len() as u32 - 1
    }

    /// The run has lost its last page.
    pub fn remove(&mut self, number: u32) {
        let run = &mut self.runs[number as usize];
        self.page_bytes -= bytes_of(&run.pages);
        run.pages = VecDeque::new();
        let page_size = run.page_size;
        self.free.push(number);
        if let Some(place) = self.sizes.iter().position(|(size, _)| *size == page_size) {
            self.sizes[place].1 -= 1;
            if self.sizes[place].1 == 0 {
                self.sizes.swap_remove(place);
            }
        }
    }

    pub fn push_back(&mut self, run: u32, page: Page) {
        self.with_pages(run, |pages| pages.push_back(page));
    }

    pub fn push_front(&mut self, run: u32, page: Page) {
        let run_mut = self.get_mut(run);
        run_mut.start -= 1;
        self.with_pages(run, |pages| pages.push_front(page));
    }

    pub fn pop_back(&mut self, run: u32) -> Option<Page> {
        self.with_pages(run, |pages| {
            let page = pages.pop_back();
            give_back(pages);
            page
        })
    }

    pub fn pop_front(&mut self, run: u32) -> Option<Page> {
        let page = self.with_pages(run, |pages| {
            let page = pages.pop_front();
            give_back(pages);
            page
        })?;
        let run = self.get_mut(run);
        run.start += 1;
        run.parent = page.key;
        Some(page)
    }

    /// Bytes of places that no run is in.
    pub fn waste(&self) -> usize {
        self.free.len() * size_of::<Run>()
    }

    /// Closes the free places. The answer has each run's new number in the place of its old one.
    pub fn compact(&mut self) -> Vec<u32> {
        let mut moved = vec![NONE; self.runs.len()];
        let mut runs = Chunked::default();
        for (number, run) in std::mem::take(&mut self.runs).into_iter().enumerate() {
            if run.len() > 0 {
                moved[number] = runs.len() as u32;
                runs.push(run);
            }
        }
        for run in runs.iter_mut() {
            run.next = moved.get(run.next as usize).copied().unwrap_or(NONE);
        }
        self.runs = runs;
        self.free = Vec::new();
        self.hand = 0;
        moved
    }

    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut Run> {
        self.runs.iter_mut()
    }

    fn with_pages<T>(&mut self, run: u32, change: impl FnOnce(&mut VecDeque<Page>) -> T) -> T {
        let pages = &mut self.runs[run as usize].pages;
        let before = bytes_of(pages);
        if pages.capacity() == 0 {
            pages.reserve_exact(1); // many runs stay that short
        }
        let result = change(pages);
        self.page_bytes = self.page_bytes + bytes_of(pages) - before;
        result
    }

    /// A run that was not used for long: the one of some that was not for longest, the one further from the start of
    /// its prompt where two are equal. Each call looks at the runs after those of the last.
    pub fn least_used(&mut self) -> Option<u32> {
        let mut best: Option<(u64, std::cmp::Reverse<u32>, u32)> = None;
        let mut seen = 0;
        for _ in 0..self.runs.len() {
            self.hand = (self.hand + 1) % self.runs.len();
            let run = &self.runs[self.hand];
            if run.pages.is_empty() {
                continue;
            }
            let candidate = (
                run.used.load(Relaxed),
                std::cmp::Reverse(run.start),
                self.hand as u32,
            );
            best = Some(best.map_or(candidate, |best| best.min(candidate)));
            seen += 1;
            if seen == SAMPLE {
                break;
            }
        }
        best.map(|(_, _, run)| run)
    }
}

fn bytes_of(pages: &VecDeque<Page>) -> usize {
    pages.capacity() * size_of::<Page>()
}

fn give_back(pages: &mut VecDeque<Page>) {
    if pages.capacity() > 8 && pages.len() * 4 < pages.capacity() {
        pages.shrink_to(pages.len() * 2);
    }
}
