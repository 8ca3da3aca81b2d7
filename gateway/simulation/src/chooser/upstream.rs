//! The published gateway's cache-aware policy, as a row to compare with. Its tree of text is one of pages of tokens
//! here, a token standing for four characters; what it evicts once in two minutes goes at once.
//!
//! ```text
//! requests of this gateway: max − min > 64 and max > 1.5 × min → the worker with the fewest, the first of equals
//! else matched share of the prompt > 0.3 → the worker that the tree remembers where the match ends
//! else → the worker with the fewest requests, the first of equals
//! ```

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;
use rand::Rng;
use smg_kv_index::{PageKey, PagedPrompt};
use smg_routing::{Candidate, Policy, RouteRequest, Verdict};

use super::UPSTREAM_CACHE_AWARE;
use crate::cache::{KeyHashing, PageCache};

pub(crate) const PAGE_TOKENS: NonZeroU32 = NonZeroU32::new(16).unwrap();

const CACHE_THRESHOLD: f64 = 0.3;
const BALANCE_ABS_THRESHOLD: usize = 64;
const BALANCE_REL_THRESHOLD: f64 = 1.5;
/// Characters of a worker.
const MAX_TREE_SIZE: usize = 67_108_864;
const CHARACTERS_PER_PAGE: usize = 4 * PAGE_TOKENS.get() as usize;

pub(crate) struct UpstreamCacheAware {
    tree: Mutex<Tree>,
}

struct Tree {
    prompt: Option<Arc<PagedPrompt>>,
    /// What each worker was sent, by its position.
    sent: Vec<PageCache>,
    /// The worker that was sent a page last.
    last: HashMap<PageKey, u32, KeyHashing>,
}

impl UpstreamCacheAware {
    pub fn new(num_workers: usize) -> Self {
        let tree = Tree {
            prompt: None,
            sent: (0..num_workers).map(|_| PageCache::default()).collect(),
            last: HashMap::default(),
        };
        Self {
            tree: Mutex::new(tree),
        }
    }

    pub fn show(&self, prompt: Arc<PagedPrompt>) {
        self.tree.lock().prompt = Some(prompt);
    }
}

impl Policy for UpstreamCacheAware {
    fn name(&self) -> &'static str {
        UPSTREAM_CACHE_AWARE
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], _rng: &mut dyn Rng) -> Option<usize> {
        let least = (0..candidates.len()).min_by_key(|&index| candidates[index].own.requests)?;
        if is_unbalanced(candidates) {
            return Some(least);
        }
        let holder = self.tree.lock().holder(request.prompt_tokens);
        let held = candidates
            .iter()
            .position(|candidate| Some(candidate.position) == holder);
        Some(held.unwrap_or(least))
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        let holder = match is_unbalanced(candidates) {
            true => None,
            false => self.tree.lock().holder(request.prompt_tokens),
        };
        let verdict = |candidate: &Candidate| match Some(candidate.position) == holder {
            true => Verdict {
                score: -1.0,
                reason: "was sent the beginning of the prompt last".into(),
            },
            false => Verdict {
                score: candidate.own.requests as f64,
                reason: "by its requests".into(),
            },
        };
        candidates.iter().map(verdict).collect()
    }

    fn note(&self, _request: &RouteRequest, candidates: &[Candidate], chosen: usize) {
        self.tree.lock().insert(candidates[chosen].position);
    }
}

fn is_unbalanced(candidates: &[Candidate]) -> bool {
    let requests = || candidates.iter().map(|candidate| candidate.own.requests);
    let (least, most) = (requests().min().unwrap_or(0), requests().max().unwrap_or(0));
    most - least > BALANCE_ABS_THRESHOLD && most as f64 > BALANCE_REL_THRESHOLD * least as f64
}

impl Tree {
    /// The worker that the tree names for the prompt, if enough of it is there.
    fn holder(&self, prompt_tokens: usize) -> Option<u32> {
        let prompt = self.prompt.as_ref()?;
        let workers = prompt.keys().iter().map_while(|key| self.last.get(key));
        let (matched, holder) = workers.fold((0, None), |(matched, _), worker| (matched + 1, Some(*worker)));
        let share = (matched * PAGE_TOKENS.get() as usize) as f64 / prompt_tokens as f64;
        holder.filter(|_| share > CACHE_THRESHOLD)
    }

    fn insert(&mut self, worker: u32) {
        let Some(prompt) = self.prompt.take() else {
            return;
        };
        let sent = &mut self.sent[worker as usize];
        for key in prompt.keys() {
            sent.acquire(*key);
            self.last.insert(*key, worker);
        }
        sent.release(prompt.keys());
        while self.sent[worker as usize].len() * CHARACTERS_PER_PAGE > MAX_TREE_SIZE {
            let Some(key) = self.sent[worker as usize].evict() else {
                return;
            };
            let other = self.sent.iter().position(|sent| sent.contains(key));
            match other {
                Some(other) => self.last.insert(key, other as u32),
                None => self.last.remove(&key),
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rand::SeedableRng;
    use rand::rngs::StdRng;
    use smg_routing::{OwnLoad, WorkerId};

    use super::*;

    fn candidates(requests: &[usize]) -> Vec<Candidate> {
        let candidate = |(position, &requests)| Candidate {
            position,
            own: OwnLoad {
                requests,
                ..OwnLoad::default()
            },
            ..Candidate::new(WorkerId::new(u64::from(position)), 0)
        };
        (0u32..).zip(requests).map(candidate).collect()
    }

    fn choose(policy: &UpstreamCacheAware, tokens: &[u32], requests: &[usize]) -> usize {
        let prompt = PagedPrompt::new(tokens, "", PAGE_TOKENS);
        policy.show(Arc::new(prompt));
        // Of no matter: nothing here depends on the time.
        let epoch = epoch_of_test();
        let request = RouteRequest::new(epoch + Duration::from_secs(1), tokens.len(), 1);
        let rng = &mut StdRng::seed_from_u64(1);
        policy
            .choose(&request, &candidates(requests), rng)
            .expect("there are some")
    }

    #[expect(clippy::disallowed_methods, reason = "a test's own clock")]
    fn epoch_of_test() -> Instant {
        Instant::now()
    }

    #[test]
    fn a_match_of_more_than_the_threshold_goes_to_who_was_sent_it_last() {
        let policy = UpstreamCacheAware::new(3);
        let prompt: Vec<u32> = (0..100).collect();
        assert_eq!(choose(&policy, &prompt, &[5, 4, 4]), 1);
        assert_eq!(choose(&policy, &prompt, &[0, 9, 0]), 1);
        let mostly_new: Vec<u32> = (0..32).chain(1000..1100).collect();
        assert_eq!(choose(&policy, &mostly_new, &[0, 9, 0]), 0);
        // The opening was sent to worker 0 last, the rest of the first prompt to worker 1.
        assert_eq!(choose(&policy, &prompt[..33], &[7, 7, 0]), 0);
        assert_eq!(choose(&policy, &prompt, &[7, 7, 0]), 1);
    }

    #[test]
    fn no_match_counts_while_loads_are_apart() {
        let policy = UpstreamCacheAware::new(2);
        let prompt: Vec<u32> = (0..100).collect();
        assert_eq!(choose(&policy, &prompt, &[1, 0]), 1);
        assert_eq!(choose(&policy, &prompt, &[0, 64]), 1);
        assert_eq!(choose(&policy, &prompt, &[0, 65]), 0);
        assert_eq!(choose(&policy, &prompt, &[65, 0]), 1);
    }
}
