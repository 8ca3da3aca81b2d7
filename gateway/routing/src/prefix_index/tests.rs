use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::*;

fn worker(number: u64) -> WorkerId {
    WorkerId::new(number)
}

fn tokens(start: u32, len: usize) -> Vec<u32> {
    (start..).take(len).collect()
}

/// Prompts without a namespace.
impl PrefixIndex {
    fn insert(&self, worker: WorkerId, tokens: &[u32]) {
        self.insert_prompt(worker, &PagedPrompt::new(tokens, ""));
    }

    fn matched_tokens(&self, tokens: &[u32]) -> Vec<(WorkerId, usize)> {
        self.match_prompt(&PagedPrompt::new(tokens, ""))
    }

    fn num_pages(&self) -> usize {
        self.inner.read().recent.values().map(RecentPages::len).sum()
    }
}

#[test]
fn a_match_is_counted_in_full_pages_of_the_common_prefix() {
    let index = PrefixIndex::new(100);
    index.insert(worker(1), &tokens(0, 40));
    assert_eq!(index.matched_tokens(&tokens(0, 40)), [(worker(1), 32)]);
    assert_eq!(index.matched_tokens(&tokens(0, 31)), [(worker(1), 16)]);
    assert_eq!(index.matched_tokens(&tokens(0, 15)), []);
    assert_eq!(index.matched_tokens(&tokens(1, 40)), []);
    let mut branched = tokens(0, 16);
    branched.extend(tokens(900, 100));
    assert_eq!(index.matched_tokens(&branched), [(worker(1), 16)]);
}

#[test]
fn the_same_page_after_another_beginning_is_another_page() {
    let index = PrefixIndex::new(100);
    let mut prompt = tokens(0, 16);
    prompt.extend(tokens(500, 16));
    index.insert(worker(1), &prompt);
    assert_eq!(index.matched_tokens(&tokens(500, 16)), []);
}

#[test]
fn each_holder_has_its_own_match() {
    let index = PrefixIndex::new(100);
    index.insert(worker(1), &tokens(0, 16));
    index.insert(worker(2), &tokens(0, 64));
    let mut matched = index.matched_tokens(&tokens(0, 80));
    matched.sort();
    assert_eq!(matched, [(worker(1), 16), (worker(2), 64)]);
    index.remove_worker(worker(2));
    assert_eq!(index.matched_tokens(&tokens(0, 80)), [(worker(1), 16)]);
    assert_eq!(index.num_pages(), 1);
}

#[test]
fn namespaces_share_nothing() {
    let index = PrefixIndex::new(100);
    index.insert_prompt(worker(1), &PagedPrompt::new(&tokens(0, 32), "adapter"));
    assert_eq!(index.matched_tokens(&tokens(0, 32)), []);
    assert_eq!(
        index.match_prompt(&PagedPrompt::new(&tokens(0, 32), "adapter")),
        [(worker(1), 32)]
    );
}

#[test]
fn the_tail_of_the_least_recently_used_prefix_is_forgotten_first() {
    let index = PrefixIndex::new(4);
    index.insert(worker(1), &tokens(0, 32));
    index.insert(worker(1), &tokens(1000, 32));
    index.insert(worker(1), &tokens(0, 32));
    index.insert(worker(1), &tokens(2000, 16));
    assert_eq!(index.matched_tokens(&tokens(0, 32)), [(worker(1), 32)]);
    assert_eq!(index.matched_tokens(&tokens(1000, 32)), [(worker(1), 16)]);
    assert_eq!(index.num_pages(), 4);
}

#[test]
fn a_prompt_longer_than_the_bound_keeps_its_head() {
    let index = PrefixIndex::new(3);
    index.insert(worker(1), &tokens(0, 1600));
    assert_eq!(index.matched_tokens(&tokens(0, 1600)), [(worker(1), 48)]);
    assert_eq!(index.num_pages(), 3);
}

#[test]
fn memory_stays_bounded_under_many_prompts() {
    let index = PrefixIndex::new(256);
    for start in 0..20_000u32 {
        index.insert(worker(u64::from(start % 2)), &tokens(start * 64, 64));
    }
    assert_eq!(index.num_pages(), 512);
    let inner = index.inner.read();
    assert_eq!(inner.holders.len(), 512);
    assert!(inner.recent.values().all(|recent| recent.nodes.len() <= 256 + 4));
}

/// The same contract written plainly: whole prefixes as keys, a list in order of use, everything copied.
#[derive(Default)]
struct Naive {
    by_worker: BTreeMap<WorkerId, Vec<Vec<u32>>>,
}

impl Naive {
    fn insert(&mut self, worker: WorkerId, prompt: &[u32], bound: usize) {
        let used = self.by_worker.entry(worker).or_default();
        for pages in (1..=(prompt.len() / PAGE_TOKENS).min(bound)).rev() {
            let prefix = prompt[..pages * PAGE_TOKENS].to_vec();
            used.retain(|known| *known != prefix);
            used.push(prefix);
        }
        let surplus = used.len().saturating_sub(bound);
        used.drain(..surplus);
    }

    fn matched(&self, prompt: &[u32]) -> BTreeSet<(WorkerId, usize)> {
        let longest = |known: &Vec<Vec<u32>>| {
            (1..=prompt.len() / PAGE_TOKENS)
                .take_while(|pages| known.contains(&prompt[..pages * PAGE_TOKENS].to_vec()))
                .count()
                * PAGE_TOKENS
        };
        let all = self
            .by_worker
            .iter()
            .map(|(worker, known)| (*worker, longest(known)));
        all.filter(|(_, tokens)| *tokens > 0).collect()
    }
}

#[test]
fn equals_the_naive_index_on_random_histories() {
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let bound = rng.random_range(1..20);
        let index = PrefixIndex::new(bound);
        let mut naive = Naive::default();
        for _ in 0..150 {
            // Few distinct pages, so that prompts share prefixes often.
            let pages = rng.random_range(0..6);
            let mut prompt: Vec<u32> = (0..pages)
                .flat_map(|_| vec![rng.random_range(0..3u32); PAGE_TOKENS])
                .collect();
            prompt.extend(vec![9; rng.random_range(0..PAGE_TOKENS)]);
            let worker = worker(rng.random_range(0..4));
            match rng.random_range(0..10) {
                0 => {
                    index.remove_worker(worker);
                    naive.by_worker.remove(&worker);
                }
                1..=6 => {
                    index.insert(worker, &prompt);
                    naive.insert(worker, &prompt, bound);
                }
                _ => {}
            }
            let matched: BTreeSet<_> = index.matched_tokens(&prompt).into_iter().collect();
            assert_eq!(matched, naive.matched(&prompt), "seed {seed}");
            let pages: usize = naive.by_worker.values().map(Vec::len).sum();
            assert_eq!(index.num_pages(), pages, "seed {seed}");
        }
    }
}
