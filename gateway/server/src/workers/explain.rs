//! Choices that are not made: what a prompt would get now, and why.

use std::{sync::Arc, time::Instant};

use smg_routing::{Candidate, Explanation, SelectError, Worker};

use super::{Fleet, Held, Routable, worths};

/// How every worker that could take a prompt stands.
pub struct Standing {
    pub policy: &'static str,
    pub prompt_tokens: usize,
    /// Times of reports are told as seen from here.
    pub now: Instant,
    /// Each with what is known of its cache; `None`: it holds nothing of the prompt.
    pub candidates: Vec<(Arc<Worker>, Candidate, Option<Held>)>,
    pub explanation: Explanation,
}

impl Fleet {
    /// What `choose` would do now. Nothing is counted, remembered or sent.
    pub fn explain(&self, model: &str, prompt: &Routable) -> Result<Standing, SelectError> {
        let held = self.held(prompt);
        let cached = worths(&held);
        let query = prompt.query(model, &cached, &[]);
        let policy = self.policies.of(model);
        let explained = self.set.explain(&query, policy.as_ref(), &mut rand::rng())?;
        let with_held = |(worker, candidate): (Arc<Worker>, Candidate)| {
            let of_worker = held.iter().find(|held| held.worker == candidate.worker).copied();
            (worker, candidate, of_worker)
        };
        Ok(Standing {
            policy: policy.name(),
            prompt_tokens: query.request.prompt_tokens,
            now: query.request.now,
            candidates: explained.candidates.into_iter().map(with_held).collect(),
            explanation: explained.explanation,
        })
    }
}
