//! A prefix cache by pages. The key of a page stands for the page and all before it, so a table of keys is the tree.
//!
//! Whoever uses a page uses all pages before it. When a use ends, pages become the most recent from the last one to
//! the first: a page is then more recent than those that follow it, and the least recent page of all is a leaf.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use smg_kv_index::PageKey;

#[derive(Default)]
pub(crate) struct PageCache {
    places: HashMap<PageKey, u32, KeyHashing>,
    /// Place 0 is no page: it closes the ring of idle pages.
    pages: Vec<Page>,
    free: Vec<u32>,
    num_idle: usize,
}

struct Page {
    key: PageKey,
    num_users: u32,
    newer: u32,
    older: u32,
}

pub(crate) type KeyHashing = BuildHasherDefault<KeyHasher>;

/// Keys are hashes already.
#[derive(Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = self.0.rotate_left(5) ^ value;
    }
}

impl PageCache {
    /// Pages that are held.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Pages that nobody uses: they can go.
    pub fn num_idle(&self) -> usize {
        self.num_idle
    }

    pub fn contains(&self, key: PageKey) -> bool {
        self.places.contains_key(&key)
    }

    /// Whether a page is held that nobody uses.
    pub fn is_idle(&self, key: PageKey) -> bool {
        let place = self.places.get(&key);
        place.is_some_and(|place| self.pages[*place as usize].num_users == 0)
    }

    /// How many of the leading pages are held.
    pub fn matched(&self, keys: &[PageKey]) -> usize {
        keys.iter().take_while(|key| self.contains(**key)).count()
    }

    /// Begins a use of a page; returns whether the page is new.
    pub fn acquire(&mut self, key: PageKey) -> bool {
        if let Some(&place) = self.places.get(&key) {
            if self.pages[place as usize].num_users == 0 {
                self.unlink(place);
            }
            self.pages[place as usize].num_users += 1;
            return false;
        }
        let page = Page {
            key,
            num_users: 1,
            newer: 0,
            older: 0,
        };
        let place = match self.free.pop() {
            Some(place) => {
                self.pages[place as usize] = page;
                place
            }
            None => {
                if self.pages.is_empty() {
                    self.pages.push(Page {
                        key,
                        num_users: 1,
                        newer: 0,
                        older: 0,
                    });
                }
                self.pages.push(page);
                (self.pages.len() - 1) as u32
            }
        };
        self.places.insert(key, place);
        true
    }

    /// Ends a use of pages that lie in a row.
    pub fn release(&mut self, keys: &[PageKey]) {
        for key in keys.iter().rev() {
            let Some(&place) = self.places.get(key) else {
                continue;
            };
            let page = &mut self.pages[place as usize];
            page.num_users -= 1;
            if page.num_users == 0 {
                self.link(place);
            }
        }
    }

    /// Drops the page that was used longest ago among those that nobody uses.
    pub fn evict(&mut self) -> Option<PageKey> {
        let oldest = self.pages.first()?.newer;
        if oldest == 0 {
            return None;
        }
        self.unlink(oldest);
        let key = self.pages[oldest as usize].key;
        self.places.remove(&key);
        self.free.push(oldest);
        Some(key)
    }

    /// Place 0 is newer than the newest page and older than the oldest one.
    fn link(&mut self, place: u32) {
        let newest = std::mem::replace(&mut self.pages[0].older, place);
        self.pages[newest as usize].newer = place;
        let page = &mut self.pages[place as usize];
        (page.older, page.newer) = (newest, 0);
        self.num_idle += 1;
    }

    fn unlink(&mut self, place: u32) {
        let Page { newer, older, .. } = self.pages[place as usize];
        self.pages[newer as usize].older = older;
        self.pages[older as usize].newer = newer;
        self.num_idle -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn keys(pages: &[u32]) -> Vec<PageKey> {
        let mut key = PageKey::root("", NonZeroU32::MIN);
        let chain = pages.iter().map(|page| {
            key = key.child(&[*page]);
            key
        });
        chain.collect()
    }

    fn use_once(cache: &mut PageCache, keys: &[PageKey]) {
        for key in keys {
            cache.acquire(*key);
        }
        cache.release(keys);
    }

    #[test]
    fn leaves_go_first_and_the_least_recent_of_them() {
        let mut cache = PageCache::default();
        let (long, short) = (keys(&[1, 2, 3]), keys(&[1, 4]));
        use_once(&mut cache, &long);
        use_once(&mut cache, &short);
        let order: Vec<_> = std::iter::from_fn(|| cache.evict()).collect();
        assert_eq!(order, [long[2], long[1], short[1], long[0]]);
        assert_eq!((cache.len(), cache.num_idle()), (0, 0));
    }

    #[test]
    fn pages_in_use_stay() {
        let mut cache = PageCache::default();
        let (held, other) = (keys(&[1, 2]), keys(&[1, 3]));
        use_once(&mut cache, &other);
        assert!(!cache.acquire(held[0]));
        assert!(cache.acquire(held[1]));
        assert_eq!(cache.evict(), Some(other[1]));
        assert_eq!(cache.evict(), None);
        assert_eq!(cache.matched(&held), 2);
        cache.release(&held);
        assert_eq!(cache.num_idle(), 2);
        assert_eq!(cache.evict(), Some(held[1]));
    }

    #[test]
    fn a_page_that_went_leaves_its_place() {
        let mut cache = PageCache::default();
        for page in 0..100 {
            use_once(&mut cache, &keys(&[page]));
            if cache.len() > 3 {
                cache.evict();
            }
        }
        assert_eq!(cache.len(), 3);
        assert_eq!(cache.pages.len(), 5);
        assert_eq!(cache.matched(&keys(&[99])), 1);
        assert_eq!(cache.matched(&keys(&[96])), 0);
    }
}
