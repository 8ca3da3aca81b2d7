//! Pages of one target in order of use.

use std::collections::VecDeque;

use crate::tables::{Hashed, Sharded};

/// A page, and when it was used last.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Use {
    low: u64,
    at: u64,
}

impl Hashed for Use {
    fn hash(&self) -> u64 {
        self.low
    }
}

/// Each use is appended to a queue; one that a later use of its page follows counts no more. The queue's front is
/// always a use that counts.
pub(super) struct Recent {
    /// In pages.
    pub capacity: usize,
    latest: Sharded<Use>,
    queue: VecDeque<Use>,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            capacity: usize::MAX,
            latest: Sharded::default(),
            queue: VecDeque::new(),
        }
    }
}

impl Recent {
    pub fn len(&self) -> usize {
        self.latest.len()
    }

    pub fn bytes(&self) -> usize {
        self.latest.bytes() + self.queue.capacity() * size_of::<Use>()
    }

    /// Bytes that a new page would allocate beside the present ones.
    pub fn growth(&self, low: u64) -> usize {
        let is_full = self.queue.len() == self.queue.capacity();
        let queue = if is_full {
            2 * self.queue.capacity().max(4) * size_of::<Use>()
        } else {
            0
        };
        queue.max(self.latest.growth(low))
    }

    /// When the page that was used longest ago was used.
    pub fn oldest(&self) -> Option<u64> {
        self.queue.front().map(|page| page.at)
    }

    /// Notes a use; returns whether the page is known. `at` grows from call to call.
    pub fn touch(&mut self, low: u64, at: u64) -> bool {
        let Some(page) = self.latest.find_mut(low, |page| page.low == low) else {
            return false;
        };
        page.at = at;
        if self.queue.len() > 2 * self.latest.len() + 16 {
            self.compact();
        }
        self.queue.push_back(Use { low, at });
        self.drop_outdated();
        true
    }

    /// The page must be new.
    pub fn insert(&mut self, low: u64, at: u64) {
        self.latest.insert(Use { low, at });
        self.queue.push_back(Use { low, at });
    }

    pub fn pop_oldest(&mut self) -> Option<u64> {
        let page = self.queue.pop_front()?;
        self.latest.remove(page.low, |known| *known == page);
        self.drop_outdated();
        if self.queue.capacity() > 64 && self.queue.len() * 4 < self.queue.capacity() {
            self.queue.shrink_to(self.queue.len() * 2);
        }
        Some(page.low)
    }

    fn drop_outdated(&mut self) {
        while self.queue.front().is_some_and(|page| !self.counts(page)) {
            self.queue.pop_front();
        }
    }

    fn compact(&mut self) {
        let queue = std::mem::take(&mut self.queue);
        self.queue = queue.into_iter().filter(|page| self.counts(page)).collect();
    }

    fn counts(&self, page: &Use) -> bool {
        self.latest.find(page.low, |known| known == page).is_some()
    }
}
