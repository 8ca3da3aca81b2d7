//! What the tokens of a request are. Traces tell which parts of prompts are equal, not the tokens; so a part is named by
//! a number, and its tokens are made from it.

use std::num::NonZeroU32;

use smg_kv_index::{PageKey, PromptKeys};

/// Consecutive tokens. Segments of equal `seed` have equal tokens as far as the shorter one goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    pub seed: u64,
    pub len: u32,
}

/// A request's prompt and answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    segments: Vec<Segment>,
    prompt_len: usize,
    output_len: usize,
}

impl Content {
    /// An answer that is as long as asked for and goes on with tokens of its own.
    pub fn new(prompt: Vec<Segment>, output: Segment) -> Self {
        let prompt_len = prompt.iter().map(|segment| segment.len as usize).sum();
        let mut segments = prompt;
        segments.push(output);
        Self {
            segments,
            prompt_len,
            output_len: output.len as usize,
        }
    }

    pub fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    pub fn output_len(&self) -> usize {
        self.output_len
    }

    /// Prompt and answer as the beginning of a longer prompt.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// The tokens from `start` up to `end` of prompt and answer.
    pub fn tokens(&self, start: usize, end: usize) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(end.saturating_sub(start));
        let mut begin = 0;
        for segment in &self.segments {
            let len = segment.len as usize;
            let (from, to) = (start.max(begin), end.min(begin + len));
            tokens.extend((from..to).map(|at| token(segment.seed, (at - begin) as u64)));
            begin += len;
        }
        tokens
    }

    /// What a gateway makes of the prompt.
    pub fn prompt_keys(&self) -> PromptKeys {
        PromptKeys::new(self.tokens(0, self.prompt_len), "")
    }

    /// Keys of the full pages of prompt and answer; `prompt` are those of the prompt.
    pub fn page_keys(&self, prompt: &PromptKeys, page_size: NonZeroU32) -> Vec<PageKey> {
        let page = page_size.get() as usize;
        let paged = prompt.paged(page_size);
        let mut keys = paged.keys().to_vec();
        let mut last = keys.last().copied().unwrap_or(PageKey::root("", page_size));
        let rest = self.tokens(keys.len() * page, self.prompt_len + self.output_len);
        for tokens in rest.chunks_exact(page) {
            last = last.child(tokens);
            keys.push(last);
        }
        keys
    }
}

/// Pages that can be taken from a cache: the last token of a prompt is always computed.
pub(crate) fn reusable_pages(prompt_len: usize, page_size: usize) -> usize {
    prompt_len.saturating_sub(1) / page_size
}

/// The token at a place of a segment.
fn token(seed: u64, place: u64) -> u32 {
    (mix(seed, place) >> 32) as u32
}

/// A hash of two numbers.
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut x = a ^ b.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(seeds: &[u64]) -> Content {
        let prompt = seeds.iter().map(|&seed| Segment { seed, len: 10 }).collect();
        Content::new(prompt, Segment { seed: 99, len: 7 })
    }

    #[test]
    fn equal_beginnings_have_equal_tokens_and_keys() {
        let page = NonZeroU32::new(4).unwrap();
        let keys = |content: &Content| content.page_keys(&content.prompt_keys(), page);
        let (first, second) = (content(&[1, 2, 3]), content(&[1, 2, 4]));
        assert_eq!(first.tokens(0, 20), second.tokens(0, 20));
        assert_ne!(first.tokens(20, 21), second.tokens(20, 21));
        assert_eq!(keys(&first)[..5], keys(&second)[..5]);
        assert_ne!(keys(&first)[5], keys(&second)[5]);
        assert_eq!(keys(&first).len(), 37 / 4);
    }

    #[test]
    fn an_answer_is_the_beginning_of_the_next_prompt() {
        let page = NonZeroU32::new(4).unwrap();
        let first = content(&[1]);
        let mut next = first.segments().to_vec();
        next.push(Segment { seed: 5, len: 11 });
        let next = Content::new(next, Segment { seed: 6, len: 1 });
        let keys = first.page_keys(&first.prompt_keys(), page);
        assert_eq!(next.prompt_keys().paged(page).keys()[..4], keys[..4]);
        assert_eq!(first.tokens(3, 17), next.tokens(3, 17));
        assert_eq!((first.prompt_len(), first.output_len()), (10, 7));
    }
}
