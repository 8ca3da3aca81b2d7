//! Approximate index of the prompt prefixes that each worker has been sent, for workers that do not publish
//! what their cache holds.
//!
//! A prompt is cut into pages of [`PAGE_TOKENS`] tokens. A page is known by a hash that includes the hash of
//! the page before it, so equal hashes mean equal prefixes, and no prompt is kept in clear.

use std::collections::HashMap;

use parking_lot::RwLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::worker::WorkerId;

pub const PAGE_TOKENS: usize = 16;

/// Hashes of a prompt's full pages, each chained with those before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedPrompt {
    hashes: Vec<u64>,
}

impl PagedPrompt {
    /// `namespace` separates prompts that share no cache although their tokens are equal (adapter, cache
    /// salt); empty for none.
    pub fn new(tokens: &[u32], namespace: &str) -> Self {
        let mut parent = xxh3_64_with_seed(namespace.as_bytes(), 0);
        let hashes = tokens.as_chunks::<PAGE_TOKENS>().0.iter().map(|page| {
            let mut bytes = [0u8; PAGE_TOKENS * 4];
            for (slot, token) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(page) {
                *slot = token.to_le_bytes();
            }
            parent = xxh3_64_with_seed(&bytes, parent);
            parent
        });
        Self {
            hashes: hashes.collect(),
        }
    }
}

/// Which worker was sent which pages. Shared between tasks.
pub struct PrefixIndex {
    pages_per_worker: usize,
    inner: RwLock<Inner>,
}

#[derive(Default)]
struct Inner {
    /// Page hash → workers that got the page. Always the inverse of `recent`.
    holders: HashMap<u64, Vec<WorkerId>>,
    recent: HashMap<WorkerId, RecentPages>,
}

impl PrefixIndex {
    /// Keeps at most `pages_per_worker` pages of each worker and forgets those that were not used for
    /// longest. Sized like the worker's cache (its tokens / [`PAGE_TOKENS`]) it forgets about when the
    /// worker does.
    pub fn new(pages_per_worker: usize) -> Self {
        Self {
            pages_per_worker: pages_per_worker.max(1),
            inner: RwLock::default(),
        }
    }

    /// Notes that `worker` gets this prompt.
    pub fn insert_prompt(&self, worker: WorkerId, prompt: &PagedPrompt) {
        let kept = &prompt.hashes[..prompt.hashes.len().min(self.pages_per_worker)];
        let inner = &mut *self.inner.write();
        let recent = inner.recent.entry(worker).or_default();
        // From the end to the start: a page is then always more recent than those that follow it, so a
        // prefix loses its tail before its head.
        for &hash in kept.iter().rev() {
            if recent.touch(hash) {
                inner.holders.entry(hash).or_default().push(worker);
            }
        }
        while recent.len() > self.pages_per_worker {
            let Some(forgotten) = recent.pop_oldest() else {
                break;
            };
            forget(&mut inner.holders, forgotten, worker);
        }
    }

    /// Tokens of the longest known prefix, for each worker that got at least one page of it.
    pub fn match_prompt(&self, prompt: &PagedPrompt) -> Vec<(WorkerId, usize)> {
        let inner = self.inner.read();
        let mut matched: Vec<(WorkerId, usize)> = Vec::new();
        for (page, hash) in prompt.hashes.iter().enumerate() {
            let Some(holders) = inner.holders.get(hash) else {
                break;
            };
            if page == 0 {
                matched.extend(holders.iter().map(|&worker| (worker, PAGE_TOKENS)));
                continue;
            }
            let mut grew = false;
            for (worker, tokens) in &mut matched {
                if *tokens == page * PAGE_TOKENS && holders.contains(worker) {
                    *tokens += PAGE_TOKENS;
                    grew = true;
                }
            }
            if !grew {
                break;
            }
        }
        matched
    }

    /// Forgets a worker that left or lost its cache.
    pub fn remove_worker(&self, worker: WorkerId) {
        let inner = &mut *self.inner.write();
        for hash in inner.recent.remove(&worker).iter().flat_map(RecentPages::hashes) {
            forget(&mut inner.holders, hash, worker);
        }
    }
}

fn forget(holders: &mut HashMap<u64, Vec<WorkerId>>, hash: u64, worker: WorkerId) {
    if let Some(workers) = holders.get_mut(&hash) {
        workers.retain(|holder| *holder != worker);
        if workers.is_empty() {
            holders.remove(&hash);
        }
    }
}

/// End of the list.
const NONE: usize = usize::MAX;

/// Pages of one worker in order of use: a list threaded through a vector, and where each page is in it.
struct RecentPages {
    places: HashMap<u64, usize>,
    nodes: Vec<Node>,
    newest: usize,
    oldest: usize,
    free: Vec<usize>,
}

struct Node {
    hash: u64,
    newer: usize,
    older: usize,
}

impl Default for RecentPages {
    fn default() -> Self {
        Self {
            places: HashMap::new(),
            nodes: Vec::new(),
            newest: NONE,
            oldest: NONE,
            free: Vec::new(),
        }
    }
}

impl RecentPages {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn hashes(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.keys().copied()
    }

    /// Makes the page the newest; returns whether it was unknown.
    fn touch(&mut self, hash: u64) -> bool {
        if let Some(&place) = self.places.get(&hash) {
            self.unlink(place);
            self.link_newest(place);
            return false;
        }
        let node = Node {
            hash,
            newer: NONE,
            older: NONE,
        };
        let place = if let Some(place) = self.free.pop() {
            self.nodes[place] = node;
            place
        } else {
            self.nodes.push(node);
            self.nodes.len() - 1
        };
        self.places.insert(hash, place);
        self.link_newest(place);
        true
    }

    fn pop_oldest(&mut self) -> Option<u64> {
        if self.oldest == NONE {
            return None;
        }
        let place = self.oldest;
        self.unlink(place);
        self.free.push(place);
        let hash = self.nodes[place].hash;
        self.places.remove(&hash);
        Some(hash)
    }

    fn unlink(&mut self, place: usize) {
        let Node { newer, older, .. } = self.nodes[place];
        match newer {
            NONE => self.newest = older,
            _ => self.nodes[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            _ => self.nodes[older].newer = newer,
        }
    }

    fn link_newest(&mut self, place: usize) {
        self.nodes[place].newer = NONE;
        self.nodes[place].older = self.newest;
        match self.newest {
            NONE => self.oldest = place,
            newest => self.nodes[newest].newer = place,
        }
        self.newest = place;
    }
}

#[cfg(test)]
mod tests;
