//! How the ids of a prompt's answers become text.

use smg_api::Sampling;
use smg_tokenizer::{StopError, StopMatcher};

use crate::workers::Served;

#[derive(Default)]
pub struct Decoding {
    pub skip_special_tokens: bool,
    /// Ids that end an answer and are no part of its text. Sorted.
    pub stop_ids: Vec<u32>,
    /// One for each answer; none where there are no stops.
    pub matchers: Vec<StopMatcher>,
    /// The matchers read the text of tokens from this one on, counted from 1: no stop comes before
    /// `min_new_tokens`.
    pub first_watched: u32,
}

impl Decoding {
    /// `limit`: the most tokens of an answer.
    pub fn new(sampling: &Sampling, served: &Served, limit: Option<u32>) -> Result<Self, StopError> {
        let mut stop_ids = Vec::new();
        // `no_stop_trim` keeps what ended the answer; `ignore_eos` lets nothing end it.
        if !sampling.ignore_eos && !sampling.no_stop_trim {
            stop_ids.extend_from_slice(&sampling.stop_token_ids);
            stop_ids.extend_from_slice(served.tokenizer.eos_token_ids());
            stop_ids.extend_from_slice(&served.info.eos_token_ids);
            stop_ids.sort_unstable();
        }
        let has_stops = !sampling.stop.is_empty() || !sampling.stop_regex.is_empty();
        let num_matchers = if has_stops { sampling.n } else { 0 };
        let matcher = |_| {
            StopMatcher::new(
                sampling.stop.clone(),
                sampling.stop_regex.clone(),
                sampling.no_stop_trim,
            )
        };
        Ok(Self {
            skip_special_tokens: sampling.skip_special_tokens,
            stop_ids,
            matchers: (0..num_matchers).map(matcher).collect::<Result<_, _>>()?,
            // As the engine does, which has to stop at the limit.
            first_watched: sampling.min_new_tokens.min(limit.unwrap_or(u32::MAX)),
        })
    }
}
