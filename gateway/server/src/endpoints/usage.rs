//! Adds up what a call cost, and turns tokens into the texts that logprobs carry.

use smg_api::{TopLogprob, Usage};
use smg_tokenizer::Tokenizer;

use crate::pipeline::{Counts, Head};

/// Token counts of all answers of a call.
#[derive(Default)]
pub struct Tally(Vec<Counts>);

impl Tally {
    /// Takes the newest counts of one answer.
    pub fn set(&mut self, head: &Head, index: usize, counts: Counts) {
        self.0.resize(head.num_answers(), Counts::default());
        if let Some(slot) = self.0.get_mut(index) {
            *slot = counts;
        }
    }

    /// The usage so far.
    pub fn usage(&self, head: &Head) -> Usage {
        self.sum(head.n)
    }

    /// A prompt counts once, however many answers it has.
    fn sum(&self, answers_per_prompt: usize) -> Usage {
        let completion = self.0.iter().map(|counts| counts.completion).sum();
        let prompts = || self.0.chunks(answers_per_prompt.max(1));
        let of_prompts = |count: fn(&Counts) -> u32| {
            prompts()
                .map(|answers| answers.iter().map(count).max().unwrap_or(0))
                .sum::<u32>()
        };
        // The first answer computed the prompt; the others found it in the cache.
        let cached = prompts()
            .filter_map(|answers| answers.first())
            .map(|counts| counts.cached)
            .sum();
        Usage::new(of_prompts(|counts| counts.prompt), completion, cached)
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
        }
    }

    #[test]
    fn a_prompt_counts_once_and_its_answers_each() {
        let tally = Tally(vec![
            counts(10, 4, 2),
            counts(10, 6, 9),
            counts(7, 1, 0),
            counts(7, 2, 6),
        ]);
        assert_eq!(tally.sum(2), Usage::new(17, 13, 2));
    }

    #[test]
    fn answers_that_have_not_begun_do_not_hide_the_prompt() {
        let tally = Tally(vec![Counts::default(), counts(10, 1, 4)]);
        assert_eq!(tally.sum(2), Usage::new(10, 1, 0));
    }
}
