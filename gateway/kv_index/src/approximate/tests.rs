use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

const LARGE: usize = 1 << 30;
const SMALL: usize = 64 << 10;

fn target(worker: u64) -> Target {
    Target { worker, rank: 0 }
}

fn index(page_size: u32, max_bytes: usize) -> ApproximateIndex {
    ApproximateIndex::new(NonZeroU32::new(page_size).unwrap(), max_bytes)
}

fn prompt(start: u32, len: usize) -> PromptKeys {
    PromptKeys::new((start..).take(len).collect::<Vec<u32>>(), "")
}

fn found(index: &ApproximateIndex, prompt: &PromptKeys) -> Vec<(u64, usize)> {
    let found = index.lookup(prompt);
    let mut found: Vec<_> = found
        .iter()
        .map(|one| (one.target.worker, one.device_tokens))
        .collect();
    found.sort_unstable();
    found
}

impl Inner {
    /// What must hold between calls.
    fn check(&self) {
        let mut holders = 0;
        let mut sets = BTreeSet::new();
        for entry in self.holders.iter() {
            holders += self.sets.get(entry.set).slots().count();
            sets.insert(std::ptr::from_ref(self.sets.get(entry.set)) as usize);
        }
        let held: usize = self.targets.iter().map(|(_, recent)| recent.len()).sum();
        assert_eq!(holders, held);
        assert_eq!(sets.len(), self.sets.live());
        let bytes: usize = self.targets.iter().map(|(_, recent)| recent.bytes()).sum();
        assert_eq!(bytes, self.recent_bytes);
        assert!(self.bytes() <= self.limit);
    }
}

#[test]
fn each_target_has_its_own_match_in_full_pages() {
    let index = index(16, LARGE);
    index.insert(target(1), &prompt(0, 16));
    index.insert(target(2), &prompt(0, 70));
    assert_eq!(found(&index, &prompt(0, 80)), [(1, 16), (2, 64)]);
    assert_eq!(found(&index, &prompt(0, 15)), []);
    assert_eq!(found(&index, &prompt(1, 80)), []);
    index.forget(target(2));
    assert_eq!(found(&index, &prompt(0, 80)), [(1, 16)]);
    assert_eq!(index.held_pages(), 1);
    index.inner.read().check();
}

#[test]
fn namespaces_share_nothing() {
    let index = index(16, LARGE);
    let tokens: Vec<u32> = (0..32).collect();
    index.insert(target(1), &PromptKeys::new(&*tokens, "adapter"));
    assert_eq!(found(&index, &PromptKeys::new(&*tokens, "")), []);
    assert_eq!(found(&index, &PromptKeys::new(&*tokens, "adapter")), [(1, 32)]);
}

#[test]
fn a_target_keeps_what_its_own_cache_takes() {
    let index = index(16, LARGE);
    index.set_capacity(target(1), 70);
    index.insert(target(1), &prompt(0, 32));
    index.insert(target(1), &prompt(1000, 32));
    index.insert(target(1), &prompt(0, 32));
    index.insert(target(1), &prompt(2000, 16));
    assert_eq!(found(&index, &prompt(0, 32)), [(1, 32)]);
    assert_eq!(found(&index, &prompt(1000, 32)), [(1, 16)]);
    index.insert(target(2), &prompt(0, 1600));
    assert_eq!(found(&index, &prompt(0, 1600)), [(1, 32), (2, 1600)]);
    index.set_capacity(target(2), 320);
    assert_eq!(found(&index, &prompt(0, 1600)), [(1, 32), (2, 320)]);
    assert_eq!(index.held_pages(), 24);
    assert_eq!(index.evicted(), 0);
}

#[test]
fn for_want_of_memory_the_oldest_page_of_all_goes() {
    let index = index(1, SMALL);
    for start in 0..100 {
        index.insert(target(u64::from(start % 5)), &prompt(start * 1000, 50));
        index.insert(target(0), &prompt(0, 50));
        index.inner.read().check();
    }
    assert!(index.evicted() > 1000);
    assert_eq!(found(&index, &prompt(0, 50)), [(0, 50)]);
    assert_eq!(found(&index, &prompt(99_000, 50)), [(4, 50)]);
    assert_eq!(found(&index, &prompt(1_000, 50)), []);
}

#[test]
fn a_prompt_too_large_for_the_memory_keeps_its_head() {
    let index = index(1, SMALL);
    index.insert(target(1), &prompt(0, 10_000));
    let kept = found(&index, &prompt(0, 10_000))[0].1;
    assert!((100..10_000).contains(&kept), "{kept}");
    assert_eq!(index.held_pages(), kept);
}

/// The same contract written plainly: whole prefixes, a list in order of use, everything copied.
#[derive(Default)]
struct Naive {
    by_target: BTreeMap<u64, Vec<Vec<u32>>>,
    capacity: BTreeMap<u64, usize>,
}

impl Naive {
    fn insert(&mut self, worker: u64, tokens: &[u32], page_size: usize) {
        let capacity = self.capacity.get(&worker).copied().unwrap_or(usize::MAX);
        let used = self.by_target.entry(worker).or_default();
        for pages in (1..=(tokens.len() / page_size).min(capacity)).rev() {
            let prefix = tokens[..pages * page_size].to_vec();
            used.retain(|known| *known != prefix);
            used.push(prefix);
        }
        self.trim(worker);
    }

    fn trim(&mut self, worker: u64) {
        let capacity = self.capacity.get(&worker).copied().unwrap_or(usize::MAX);
        let used = self.by_target.entry(worker).or_default();
        let surplus = used.len().saturating_sub(capacity);
        used.drain(..surplus);
    }

    fn found(&self, tokens: &[u32], page_size: usize) -> Vec<(u64, usize)> {
        let longest = |known: &Vec<Vec<u32>>| {
            let pages = 1..=tokens.len() / page_size;
            let held = pages.take_while(|pages| known.contains(&tokens[..pages * page_size].to_vec()));
            held.count() * page_size
        };
        let all = self
            .by_target
            .iter()
            .map(|(worker, known)| (*worker, longest(known)));
        all.filter(|(_, tokens)| *tokens > 0).collect()
    }
}

#[derive(Clone, Debug)]
enum Step {
    Insert(u64, Vec<u32>),
    Capacity(u64, usize),
    Forget(u64),
    LookUp(Vec<u32>),
}

fn step() -> impl Strategy<Value = Step> {
    // Few different pages, so that prompts share beginnings often.
    let path = || prop::collection::vec(0..3u32, 0..6);
    prop_oneof![
        8 => (0..4u64, path()).prop_map(|(worker, path)| Step::Insert(worker, path)),
        1 => (0..4u64, 1..20usize).prop_map(|(worker, pages)| Step::Capacity(worker, pages)),
        1 => (0..4u64).prop_map(Step::Forget),
        4 => path().prop_map(Step::LookUp),
    ]
}

fn compare(steps: Vec<Step>, page_size: usize) {
    let index = index(page_size as u32, LARGE);
    let mut naive = Naive::default();
    for step in steps {
        let mut asked = Vec::new();
        let spread = |path: Vec<u32>| {
            path.iter()
                .flat_map(|page| vec![*page; page_size])
                .collect::<Vec<_>>()
        };
        match step {
            Step::Insert(worker, path) => {
                asked = spread(path);
                index.insert(target(worker), &PromptKeys::new(&*asked, ""));
                naive.insert(worker, &asked, page_size);
            }
            Step::Capacity(worker, pages) => {
                index.set_capacity(target(worker), pages * page_size);
                naive.capacity.insert(worker, pages);
                naive.trim(worker);
            }
            Step::Forget(worker) => {
                index.forget(target(worker));
                naive.by_target.remove(&worker);
                naive.capacity.remove(&worker);
            }
            Step::LookUp(path) => asked = spread(path),
        }
        asked.push(9);
        assert_eq!(
            found(&index, &PromptKeys::new(&*asked, "")),
            naive.found(&asked, page_size)
        );
        index.inner.read().check();
        assert_eq!(
            index.held_pages(),
            naive.by_target.values().map(Vec::len).sum::<usize>()
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_naive_index(steps in prop::collection::vec(step(), 1..120), page_size in prop::sample::select(vec![1, 4, 16])) {
        compare(steps, page_size);
    }
}
