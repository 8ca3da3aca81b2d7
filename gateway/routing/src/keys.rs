//! Hashes by which requests are told apart, the same in every gateway. What a client sent is not kept.

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Bytes that stand for a token where a prompt is not tokenized here.
const BYTES_PER_TOKEN: usize = 4;

/// The key of requests that belong together, from what their client calls them.
pub fn routing_key(given: &str) -> u64 {
    xxh3_64(given.as_bytes())
}

/// The key of a prompt's first `count` tokens; `None` for a prompt without tokens. `namespace` separates prompts that
/// share no cache although their tokens are equal.
pub fn prefix_key(tokens: &[u32], count: usize, namespace: &str) -> Option<u64> {
    let opening = &tokens[..tokens.len().min(count)];
    if opening.is_empty() {
        return None;
    }
    let mut hasher = in_namespace(namespace);
    for token in opening {
        hasher.update(&token.to_le_bytes());
    }
    Some(hasher.digest())
}

/// The same of a prompt that is not tokenized here: of its first `count` tokens, taken as four bytes each. Prompts
/// that differ within a character may get one key; that costs nothing but the distinction.
pub fn prefix_key_of_bytes(text: &[u8], count: usize, namespace: &str) -> Option<u64> {
    let opening = &text[..text.len().min(count.saturating_mul(BYTES_PER_TOKEN))];
    if opening.is_empty() {
        return None;
    }
    let mut hasher = in_namespace(namespace);
    hasher.update(opening);
    Some(hasher.digest())
}

fn in_namespace(namespace: &str) -> Xxh3 {
    Xxh3::with_seed(xxh3_64(namespace.as_bytes()))
}

/// A hash of two; every bit of the result depends on every bit of both.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_opening_counts() {
        let tokens: Vec<u32> = (0..300).collect();
        let same = prefix_key(&tokens, 256, "");
        assert_eq!(prefix_key(&tokens[..256], 256, ""), same);
        assert_ne!(prefix_key(&tokens[..255], 256, ""), same);
        assert_ne!(prefix_key(&tokens, 256, "adapter"), same);
        assert_eq!(prefix_key(&[], 256, ""), None);
        let text = "prefix".repeat(300);
        assert_eq!(
            prefix_key_of_bytes(text.as_bytes(), 256, ""),
            prefix_key_of_bytes(&text.as_bytes()[..1024], 256, "")
        );
        assert_eq!(prefix_key_of_bytes(b"", 256, ""), None);
    }

    /// B060: matches of text that is cut within a character.
    #[test]
    fn prompts_that_end_within_a_character_have_keys_of_their_own() {
        let (first, second) = ("prefix-é東A", "prefix-é東B");
        assert_ne!(
            prefix_key_of_bytes(first.as_bytes(), 256, ""),
            prefix_key_of_bytes(second.as_bytes(), 256, "")
        );
        let cuts: std::collections::HashSet<_> = (0..=first.len())
            .map(|cut| prefix_key_of_bytes(&first.as_bytes()[..cut], 256, ""))
            .collect();
        assert_eq!(cuts.len(), first.len() + 1);
        // The bound falls between the two bytes of a character.
        let bounded = |text: &str| prefix_key_of_bytes(text.as_bytes(), 2, "");
        assert_eq!(bounded("prefix-éA"), bounded("prefix-ê"));
    }

    #[test]
    fn mixing_tells_neighbours_apart_in_every_bit() {
        for bit in 0..64 {
            let ones = (0..1000u64).filter(|&n| mix(7, n) >> bit & 1 == 1).count();
            assert!((400..=600).contains(&ones), "bit {bit}: {ones}");
        }
    }
}
