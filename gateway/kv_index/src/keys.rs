//! Keys of a prompt's pages.

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_128;

/// Stands for a page together with all before it: 128 bits of a hash chain that begins with the namespace and
/// the page size. Indexes find a page by `low` and compare all bits. The chain carries all bits as well, so
/// even two prefixes of equal `low` part again at their next page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageKey {
    pub low: u64,
    pub high: u64,
}

impl PageKey {
    /// The beginning of every prompt of a namespace (adapter, cache salt; empty for none), before its first page.
    pub fn root(namespace: &str, page_size: NonZeroU32) -> Self {
        let mut bytes = page_size.get().to_le_bytes().to_vec();
        bytes.extend_from_slice(namespace.as_bytes());
        Self::of(xxh3_128(&bytes))
    }

    /// The key of the page after this one.
    pub fn child(self, page: &[u32]) -> Self {
        self.child_in(page, &mut Vec::new())
    }

    /// The same with a buffer that many pages may share.
    pub(crate) fn child_in(self, page: &[u32], bytes: &mut Vec<u8>) -> Self {
        bytes.resize(16 + page.len() * 4, 0);
        let (state, tokens) = bytes.split_at_mut(16);
        state[..8].copy_from_slice(&self.low.to_le_bytes());
        state[8..].copy_from_slice(&self.high.to_le_bytes());
        for (slot, token) in tokens.as_chunks_mut::<4>().0.iter_mut().zip(page) {
            *slot = token.to_le_bytes();
        }
        Self::of(xxh3_128(bytes))
    }

    fn of(hash: u128) -> Self {
        let bytes = hash.to_le_bytes();
        let (halves, _) = bytes.as_chunks::<8>();
        Self {
            low: u64::from_le_bytes(halves[0]),
            high: u64::from_le_bytes(halves[1]),
        }
    }
}

/// Keys of a prompt's full pages; a rest that fills no page has none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PagedPrompt {
    page_size: NonZeroU32,
    keys: Vec<PageKey>,
}

impl PagedPrompt {
    pub fn new(tokens: &[u32], namespace: &str, page_size: NonZeroU32) -> Self {
        let mut key = PageKey::root(namespace, page_size);
        let mut bytes = Vec::new();
        let pages = tokens.chunks_exact(page_size.get() as usize);
        let keys = pages
            .map(|page| {
                key = key.child_in(page, &mut bytes);
                key
            })
            .collect();
        Self { page_size, keys }
    }

    pub fn page_size(&self) -> NonZeroU32 {
        self.page_size
    }

    pub fn keys(&self) -> &[PageKey] {
        &self.keys
    }
}

/// A prompt, and its keys for each page size that was asked for.
#[derive(Debug)]
pub struct PromptKeys {
    tokens: Arc<[u32]>,
    namespace: String,
    paged: Mutex<Vec<Arc<PagedPrompt>>>,
}

impl PromptKeys {
    /// `namespace` separates prompts that share no cache although their tokens are equal; empty for none.
    pub fn new(tokens: impl Into<Arc<[u32]>>, namespace: &str) -> Self {
        Self {
            tokens: tokens.into(),
            namespace: namespace.to_owned(),
            paged: Mutex::default(),
        }
    }

    /// The keys for a page size, computed at the first call with it.
    pub fn paged(&self, page_size: NonZeroU32) -> Arc<PagedPrompt> {
        let mut paged = self.paged.lock();
        if let Some(known) = paged.iter().find(|paged| paged.page_size == page_size) {
            return Arc::clone(known);
        }
        let new = Arc::new(PagedPrompt::new(&self.tokens, &self.namespace, page_size));
        paged.push(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(tokens: u32) -> NonZeroU32 {
        NonZeroU32::new(tokens).unwrap()
    }

    fn keys(tokens: &[u32], namespace: &str, page_size: u32) -> Vec<PageKey> {
        PagedPrompt::new(tokens, namespace, size(page_size)).keys
    }

    #[test]
    fn equal_prefixes_have_equal_keys_and_a_rest_has_none() {
        let long: Vec<u32> = (0..100).collect();
        assert_eq!(keys(&long, "", 16).len(), 6);
        assert_eq!(keys(&long[..40], "", 16), keys(&long, "", 16)[..2]);
        assert_eq!(keys(&long[..15], "", 16), []);
        assert_eq!(keys(&long, "", 1).len(), 100);
    }

    #[test]
    fn whatever_came_before_a_page_changes_its_key() {
        let mut other: Vec<u32> = (0..32).collect();
        let first = keys(&other, "", 16);
        other[0] = 99;
        let second = keys(&other, "", 16);
        assert_ne!(first[0], second[0]);
        assert_ne!(first[1], second[1]);
    }

    #[test]
    fn namespaces_and_page_sizes_share_no_key() {
        let tokens: Vec<u32> = vec![5; 64];
        let all = [
            keys(&tokens, "", 16),
            keys(&tokens, "adapter", 16),
            keys(&tokens, "", 4),
            keys(&tokens, "", 1),
        ];
        let mut flat: Vec<PageKey> = all.concat();
        let count = flat.len();
        flat.sort();
        flat.dedup();
        assert_eq!(flat.len(), count);
    }

    #[test]
    fn prefixes_of_equal_low_part_again_at_the_next_page() {
        let one = PageKey { low: 1, high: 1 };
        let other = PageKey { low: 1, high: 2 };
        assert_ne!(one.child(&[7, 8]).low, other.child(&[7, 8]).low);
    }

    #[test]
    fn a_prompt_is_paged_once_for_each_page_size() {
        let prompt = PromptKeys::new(vec![1, 2, 3, 4, 5], "x");
        let first = prompt.paged(size(2));
        assert!(Arc::ptr_eq(&first, &prompt.paged(size(2))));
        assert_eq!(*first, PagedPrompt::new(&[1, 2, 3, 4, 5], "x", size(2)));
        assert_eq!(prompt.paged(size(1)).keys().len(), 5);
    }
}
