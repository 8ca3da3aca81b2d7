//! Adds up what a call cost, and turns tokens into the texts that logprobs carry.

use smg_api::{CachedTokensDetails, TopLogprob, Usage};
use smg_engine_client::CachedTiers;
use smg_tokenizer::Tokenizer;

use crate::pipeline::{Counts, Head};

/// Token counts of all answers of a call.
pub struct Tally {
    counts: Vec<Counts>,
    /// Says where cached tokens came from.
    with_details: bool,
}

impl Tally {
    pub fn new(with_details: bool) -> Self {
        Self {
            counts: Vec::new(),
            with_details,
        }
    }

    /// Takes the newest counts of one answer.
    pub fn set(&mut self, head: &Head, index: usize, counts: Counts) {
        self.counts.resize(head.num_answers(), Counts::default());
        if let Some(slot) = self.counts.get_mut(index) {
            *slot = counts;
        }
    }

    /// The usage so far.
    pub fn usage(&self, head: &Head) -> Usage {
        self.sum(head.n)
    }

    /// A prompt counts once, however many answers it has.
    fn sum(&self, answers_per_prompt: usize) -> Usage {
        let completion = self.counts.iter().map(|counts| counts.completion).sum();
        let prompts = || self.counts.chunks(answers_per_prompt.max(1));
        let of_prompts = |count: fn(&Counts) -> u32| {
            prompts()
                .map(|answers| answers.iter().map(count).max().unwrap_or(0))
                .sum::<u32>()
        };
        // The first answer computed the prompt; the others found it in the cache.
        let first = || prompts().filter_map(|answers| answers.first());
        let cached = first().map(|counts| counts.cached).sum();
        let tiers = first().filter_map(|counts| counts.tiers).reduce(added);
        Usage::new(of_prompts(|counts| counts.prompt), completion, cached)
            .with_details(tiers.filter(|_| self.with_details).map(details))
    }
}

fn added(one: CachedTiers, other: CachedTiers) -> CachedTiers {
    CachedTiers {
        device: one.device + other.device,
        host: one.host + other.host,
        storage: one.storage + other.storage,
    }
}

/// In the words of the API.
pub fn details(tiers: CachedTiers) -> CachedTokensDetails {
    CachedTokensDetails {
        device: tiers.device,
        host: tiers.host,
        storage: tiers.storage,
    }
}

/// The text and the raw bytes of one token.
pub fn token_text(tokenizer: &Tokenizer, id: u32) -> (String, Vec<u8>) {
    let bytes = tokenizer.token_bytes(id);
    (String::from_utf8_lossy(&bytes).into_owned(), bytes)
}

/// The likeliest tokens at one position.
pub fn top_logprobs(tokenizer: &Tokenizer, row: Option<&Vec<(u32, f32)>>) -> Vec<TopLogprob> {
    let top = row.into_iter().flatten();
    top.map(|&(id, logprob)| {
        let (token, bytes) = token_text(tokenizer, id);
        TopLogprob {
            token,
            logprob,
            bytes,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(prompt: u32, completion: u32, cached: u32) -> Counts {
        Counts {
            prompt,
            completion,
            cached,
            tiers: Some(CachedTiers {
                device: cached,
                ..CachedTiers::default()
            }),
        }
    }

    fn tally(counts: Vec<Counts>) -> Tally {
        Tally {
            counts,
            with_details: false,
        }
    }

    #[test]
    fn tiers_add_up_like_the_tokens_and_are_told_if_wanted() {
        let mut tally = tally(vec![counts(10, 4, 2), counts(10, 6, 9), counts(7, 1, 3)]);
        let told = |tally: &Tally| tally.sum(2).prompt_tokens_details.unwrap_or_default();
        assert_eq!(told(&tally).cached_tokens_details, None);
        tally.with_details = true;
        let expected = CachedTokensDetails {
            device: 5,
            ..CachedTokensDetails::default()
        };
        assert_eq!(told(&tally).cached_tokens_details, Some(expected));
    }

    #[test]
    fn a_prompt_counts_once_and_its_answers_each() {
        let tally = tally(vec![
            counts(10, 4, 2),
            counts(10, 6, 9),
            counts(7, 1, 0),
            counts(7, 2, 6),
        ]);
        assert_eq!(tally.sum(2), Usage::new(17, 13, 2));
    }

    #[test]
    fn answers_that_have_not_begun_do_not_hide_the_prompt() {
        let tally = tally(vec![Counts::default(), counts(10, 1, 4)]);
        assert_eq!(tally.sum(2), Usage::new(10, 1, 0));
    }
}
