use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use proptest::prelude::*;

use super::entries::PageEntry;
use super::*;
use crate::event::{RemovedBlocks, StoredBlocks, Tier};
use crate::keys::PageKey;

const LARGE: usize = 1 << 30;

fn target(worker: u64) -> Target {
    Target { worker, rank: 0 }
}

/// A worker whose hash of a prefix depends on its own seed.
struct Worker {
    target: Target,
    seed: i64,
    page_size: u32,
}

impl Worker {
    fn new(number: u64, page_size: u32) -> Self {
        Self {
            target: target(number),
            seed: number.cast_signed() + 1,
            page_size,
        }
    }

    fn hash(&self, prefix: &[u32]) -> i64 {
        let start = (i64::from(self.page_size)).wrapping_mul(self.seed);
        prefix.iter().fold(start, |hash, token| {
            hash.wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(i64::from(*token) + self.seed)
        })
    }

    /// The event that stores the pages of a prompt from page `from` on.
    fn stores(&self, tokens: &[u32], from: usize, tier: Tier) -> KvEvent {
        let size = self.page_size as usize;
        let pages = tokens.len() / size;
        KvEvent::Stored(StoredBlocks {
            tier,
            namespace: String::new(),
            parent: (from > 0).then(|| self.hash(&tokens[..from * size])),
            block_size: self.page_size,
            hashes: (from..pages)
                .map(|page| self.hash(&tokens[..(page + 1) * size]))
                .collect(),
            tokens: tokens[(from * size).min(tokens.len())..pages * size].to_vec(),
        })
    }

    fn removes(&self, prefix: &[u32], tier: Option<Tier>) -> KvEvent {
        KvEvent::Removed(RemovedBlocks {
            tier,
            hashes: vec![self.hash(prefix)],
        })
    }
}

/// Each character is a page of equal tokens.
fn prompt(pages: &[u32], page_size: u32) -> Vec<u32> {
    pages
        .iter()
        .flat_map(|&page| vec![page; page_size as usize])
        .collect()
}

fn found(index: &KvIndex, tokens: &[u32]) -> Vec<(u64, [usize; 3])> {
    let mut found: Vec<_> = index
        .lookup(&PromptKeys::new(tokens, ""))
        .iter()
        .map(|found| {
            let tokens = [found.device_tokens, found.host_tokens, found.storage_tokens];
            (found.target.worker, tokens)
        })
        .collect();
    found.sort_unstable();
    found
}

impl Inner {
    /// What must hold between calls.
    fn check(&self) {
        let (mut pages, mut users) = (0, HashMap::<usize, usize>::new());
        for number in 0..self.pages.runs.slots() as u32 {
            let run = self.pages.runs.get(number);
            if run.len() == 0 {
                continue;
            }
            pages += run.len();
            let holders = self.pages.holders(number);
            *users.entry(std::ptr::from_ref(holders) as usize).or_default() += 1;
            assert!(holders.slots().count() > 0);
            for (depth, page) in (run.start..).zip(&run.pages) {
                let is = |e: &PageEntry| e.low == page.key.low && e.run == number && e.depth == depth;
                assert!(self.pages.table.find(page.key.low, is).is_some());
            }
        }
        assert_eq!(pages, self.pages.table.len());
        assert_eq!(users.len(), self.pages.sets.live());
        let live: usize = self.targets.iter().map(|(_, held)| held.entries.bytes()).sum();
        assert_eq!(live, self.held_bytes);
        assert!(self.bytes() <= self.limit, "{} of {}", self.bytes(), self.limit);
    }

    /// Different bits in sets, each of which has an entry of its target.
    fn held_bits(&self) -> usize {
        let runs = (0..self.pages.runs.slots() as u32).filter(|&run| self.pages.runs.get(run).len() > 0);
        runs.map(|run| self.pages.runs.get(run).len() * self.pages.holders(run).slots().count())
            .sum()
    }
}

#[test]
fn each_target_has_the_pages_that_it_told_of() {
    let index = KvIndex::new(LARGE);
    let (one, other) = (Worker::new(1, 4), Worker::new(2, 4));
    let tokens: Vec<u32> = (0..40).collect();
    index.apply(one.target, &[one.stores(&tokens, 0, Tier::Device)]);
    index.apply(other.target, &[other.stores(&tokens[..22], 0, Tier::Host)]);
    assert_eq!(found(&index, &tokens), [(1, [40, 0, 0]), (2, [0, 20, 0])]);
    assert_eq!(found(&index, &tokens[..7]), [(1, [4, 0, 0]), (2, [0, 4, 0])]);
    assert_eq!(found(&index, &tokens[1..]), []);
    assert_eq!(index.stats().runs, 2);
    index.apply(one.target, &[one.removes(&tokens[..8], None)]);
    assert_eq!(found(&index, &tokens), [(1, [4, 0, 0]), (2, [0, 20, 0])]);
    index.forget(one.target);
    assert_eq!(found(&index, &tokens), [(2, [0, 20, 0])]);
    index.apply(other.target, &[KvEvent::Cleared]);
    assert_eq!(found(&index, &tokens), []);
    assert_eq!((index.stats().pages, index.stats().runs), (0, 0));
}

#[test]
fn a_page_counts_in_the_fastest_tier_that_has_it() {
    let index = KvIndex::new(LARGE);
    let worker = Worker::new(1, 1);
    let tokens: Vec<u32> = (0..10).collect();
    index.apply(
        worker.target,
        &[
            worker.stores(&tokens[..4], 0, Tier::Device),
            worker.stores(&tokens[..7], 0, Tier::Host),
            worker.stores(&tokens, 0, Tier::Storage),
        ],
    );
    assert_eq!(found(&index, &tokens), [(1, [4, 3, 3])]);
    index.apply(worker.target, &[worker.removes(&tokens[..4], Some(Tier::Device))]);
    assert_eq!(found(&index, &tokens), [(1, [3, 4, 3])]);
}

#[test]
fn equal_hashes_of_two_workers_stand_for_the_pages_of_each() {
    let index = KvIndex::new(LARGE);
    for (worker, token) in [(1, 10), (2, 20)] {
        let stored = StoredBlocks {
            tier: Tier::Device,
            namespace: String::new(),
            parent: None,
            block_size: 2,
            hashes: vec![77],
            tokens: vec![token, token],
        };
        index.apply(target(worker), &[KvEvent::Stored(stored)]);
    }
    assert_eq!(found(&index, &[10, 10]), [(1, [2, 0, 0])]);
    let removed = RemovedBlocks {
        tier: None,
        hashes: vec![77],
    };
    index.apply(target(1), &[KvEvent::Removed(removed)]);
    assert_eq!(found(&index, &[10, 10]), []);
    assert_eq!(found(&index, &[20, 20]), [(2, [2, 0, 0])]);
}

#[test]
fn a_page_is_in_the_namespace_that_its_prompt_began_in() {
    let index = KvIndex::new(LARGE);
    let store = |namespace: &str, parent, hash, token| {
        let stored = StoredBlocks {
            tier: Tier::Device,
            namespace: namespace.to_owned(),
            parent,
            block_size: 1,
            hashes: vec![hash],
            tokens: vec![token],
        };
        index.apply(target(1), &[KvEvent::Stored(stored)]);
    };
    store("adapter", None, 1, 5);
    store("adapter", Some(1), 2, 6);
    assert_eq!(found(&index, &[5, 6]), []);
    let matched = index.lookup(&PromptKeys::new(&[5, 6][..], "adapter"));
    assert_eq!(matched[0].total_tokens(), 2);
    store("", None, 3, 5);
    assert_eq!(found(&index, &[5, 6]), [(1, [1, 0, 0])]);
}

#[test]
fn what_cannot_be_taken_is_counted() {
    let index = KvIndex::new(LARGE);
    let worker = Worker::new(1, 4);
    let tokens: Vec<u32> = (0..16).collect();
    let applied = index.apply(worker.target, &[worker.stores(&tokens, 2, Tier::Device)]);
    assert_eq!((applied.orphans, applied.stored), (2, 0));
    index.apply(worker.target, &[worker.stores(&tokens, 0, Tier::Device)]);
    let other_size = Worker {
        page_size: 2,
        ..worker
    };
    let applied = index.apply(other_size.target, &[other_size.stores(&tokens, 0, Tier::Device)]);
    assert_eq!(applied.malformed, 8);
    let short = StoredBlocks {
        tier: Tier::Device,
        namespace: String::new(),
        parent: None,
        block_size: 4,
        hashes: vec![5, 6],
        tokens: vec![1; 7],
    };
    let applied = index.apply(target(3), &[KvEvent::Stored(short)]);
    assert_eq!(applied.malformed, 2);
    assert_eq!(index.stats().pages, 4);
}

#[test]
fn a_hash_that_a_worker_uses_again_stands_for_the_later_page() {
    let index = KvIndex::new(LARGE);
    for token in [10, 20] {
        let stored = StoredBlocks {
            tier: Tier::Device,
            namespace: String::new(),
            parent: None,
            block_size: 1,
            hashes: vec![77],
            tokens: vec![token],
        };
        index.apply(target(1), &[KvEvent::Stored(stored)]);
    }
    assert_eq!(found(&index, &[10]), []);
    assert_eq!(found(&index, &[20]), [(1, [1, 0, 0])]);
    index.inner.read().check();
}

#[test]
fn changes_of_one_target_from_several_threads_leave_nothing_behind() {
    let index = KvIndex::new(LARGE);
    std::thread::scope(|scope| {
        for start in 0..4u32 {
            let index = &index;
            scope.spawn(move || {
                let worker = Worker::new(1, 1);
                let tokens: Vec<u32> = (start * 1000..).take(300).collect();
                for _ in 0..20 {
                    index.apply(worker.target, &[worker.stores(&tokens, 0, Tier::Device)]);
                    index.forget(worker.target);
                }
            });
        }
    });
    index.inner.read().check();
    let stats = index.stats();
    assert_eq!((stats.targets, stats.pages, stats.held_pages), (0, 0, 0));
}

#[test]
fn pages_of_equal_lower_key_are_told_apart() {
    let index = KvIndex::new(LARGE);
    let worker = Worker::new(1, 1);
    index.apply(worker.target, &[worker.stores(&[1, 2], 0, Tier::Device)]);
    let inner = index.inner.read();
    let known = PromptKeys::new(&[1][..], "").paged(NonZeroU32::MIN).keys()[0];
    let forged = PageKey {
        high: known.high ^ 1,
        ..known
    };
    assert!(inner.pages.locate(known).is_some());
    assert!(inner.pages.locate(forged).is_none());
}

#[test]
fn a_prefix_that_workers_lose_page_by_page_stays_in_few_runs() {
    let index = KvIndex::new(LARGE);
    let workers: Vec<Worker> = (0..4).map(|number| Worker::new(number, 1)).collect();
    let tokens: Vec<u32> = (0..400).collect();
    for worker in &workers {
        index.apply(worker.target, &[worker.stores(&tokens, 0, Tier::Device)]);
    }
    assert_eq!(index.stats().runs, 1);
    for len in (101..=400).rev() {
        index.apply(workers[0].target, &[workers[0].removes(&tokens[..len], None)]);
        assert_eq!(index.stats().runs, 2);
    }
    assert_eq!(found(&index, &tokens)[0], (0, [100, 0, 0]));
    index.apply(
        workers[0].target,
        &[workers[0].stores(&tokens, 100, Tier::Device)],
    );
    assert_eq!(index.stats().runs, 1);
    for len in 1..=400 {
        index.apply(workers[1].target, &[workers[1].removes(&tokens[..len], None)]);
        index.inner.read().check();
    }
    assert_eq!(index.stats().runs, 1);
}

#[test]
fn the_end_of_what_was_used_longest_ago_goes_first() {
    let index = KvIndex::new(MIN_LIMIT);
    let worker = Worker::new(1, 1);
    let of = |start: u32| -> Vec<u32> { (start * 1000..).take(100).collect() };
    for start in 0..40 {
        index.apply(worker.target, &[worker.stores(&of(start), 0, Tier::Device)]);
        assert_eq!(
            found(&index, &of(0)),
            [(1, [100, 0, 0])],
            "looked up after prompt {start}"
        );
    }
    index.inner.read().check();
    let stats = index.stats();
    assert!(stats.evicted > 1000 && stats.bytes <= MIN_LIMIT, "{stats:?}");
    assert_eq!(found(&index, &of(39)), [(1, [100, 0, 0])]);
    assert_eq!(found(&index, &of(1)), []);
}

#[test]
fn memory_of_many_short_runs_serves_long_ones_later() {
    let fill = |index: &KvIndex| {
        let worker = Worker::new(1, 1);
        for start in 0..60u32 {
            let tokens: Vec<u32> = (start * 1000..).take(500).collect();
            index.apply(worker.target, &[worker.stores(&tokens, 0, Tier::Device)]);
        }
    };
    let fresh = KvIndex::new(1 << 20);
    fill(&fresh);
    let used = KvIndex::new(1 << 20);
    for start in 0..20_000u32 {
        let worker = Worker::new(u64::from(start % 64), 1);
        used.apply(
            worker.target,
            &[worker.stores(&[100_000 + start], 0, Tier::Device)],
        );
    }
    let fragmented = used.stats();
    assert!(fragmented.runs > 2_000, "{fragmented:?}");
    fill(&used);
    used.inner.read().check();
    let (fresh, used) = (fresh.stats(), used.stats());
    assert!(
        fresh.evicted > 0 && used.pages * 3 > fresh.pages * 2,
        "{fresh:?} {used:?}"
    );
    assert!(used.runs < 1_000, "{used:?}");
}

#[test]
fn evicted_pages_leave_no_entry_whatever_workers_call_them() {
    let index = KvIndex::new(1 << 20);
    let workers: Vec<Worker> = (0..8).map(|number| Worker::new(number, 1)).collect();
    for start in 0..200u32 {
        let tokens: Vec<u32> = (start * 1000..).take(200).collect();
        for worker in &workers {
            index.apply(worker.target, &[worker.stores(&tokens, 0, Tier::Device)]);
        }
    }
    let inner = index.inner.read();
    inner.check();
    let entries: usize = inner.targets.iter().map(|(_, held)| held.entries.len()).sum();
    assert!(inner.evicted > 10_000);
    assert!(
        entries < inner.held_bits() * 3 / 2,
        "{entries} of {}",
        inner.held_bits()
    );
}

#[test]
fn lookups_go_on_while_another_thread_stores() {
    let index = Arc::new(KvIndex::new(LARGE));
    let worker = Worker::new(1, 1);
    let known: Vec<u32> = (0..100).collect();
    index.apply(worker.target, &[worker.stores(&known, 0, Tier::Device)]);
    let writer = std::thread::spawn({
        let index = Arc::clone(&index);
        move || {
            let other = Worker::new(2, 1);
            for start in 1..50u32 {
                let tokens: Vec<u32> = (start * 1000..).take(300).collect();
                index.apply(other.target, &[other.stores(&tokens, 0, Tier::Device)]);
            }
        }
    });
    while !writer.is_finished() {
        assert_eq!(found(&index, &known), [(1, [100, 0, 0])]);
    }
    writer.join().unwrap();
    index.inner.read().check();
}

/// The same contract written plainly: whole prefixes, each with its tiers.
#[derive(Default)]
struct Naive {
    held: HashMap<u64, HashMap<Vec<u32>, HashSet<usize>>>,
}

impl Naive {
    fn store(&mut self, worker: &Worker, tokens: &[u32], from: usize, tier: Tier) {
        let size = worker.page_size as usize;
        let held = self.held.entry(worker.target.worker).or_default();
        if from > 0 && !held.contains_key(&tokens[..from * size]) {
            return;
        }
        for page in from..tokens.len() / size {
            let prefix = tokens[..(page + 1) * size].to_vec();
            held.entry(prefix).or_default().insert(tier as usize);
        }
    }

    fn remove(&mut self, worker: &Worker, prefix: &[u32], tier: Option<Tier>) {
        let held = self.held.entry(worker.target.worker).or_default();
        if let Some(tiers) = held.get_mut(prefix) {
            tiers.retain(|held| tier.is_some_and(|tier| *held != tier as usize));
            if tiers.is_empty() {
                held.remove(prefix);
            }
        }
    }

    fn found(&self, workers: &[Worker], tokens: &[u32]) -> Vec<(u64, [usize; 3])> {
        let mut all = Vec::new();
        for worker in workers {
            let size = worker.page_size as usize;
            let held = self.held.get(&worker.target.worker);
            let mut counts = [0; 3];
            for page in 0..tokens.len() / size {
                let tiers = held.and_then(|held| held.get(&tokens[..(page + 1) * size]));
                let Some(fastest) = tiers.and_then(|tiers| tiers.iter().min()) else {
                    break;
                };
                counts[*fastest] += size;
            }
            if counts != [0; 3] {
                all.push((worker.target.worker, counts));
            }
        }
        all
    }
}

#[derive(Clone, Debug)]
enum Step {
    Store(usize, Vec<u32>, usize, Tier),
    Remove(usize, Vec<u32>, Option<Tier>),
    Clear(usize),
    Forget(usize),
    LookUp(Vec<u32>),
}

/// Few different pages, so that prompts share beginnings often.
fn path(longest: usize) -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..3u32, 0..longest)
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![3 => Just(Tier::Device), 1 => Just(Tier::Host), 1 => Just(Tier::Storage)]
}

fn step(longest: usize) -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..4usize, path(longest), 0..6usize, tier()).prop_map(|(w, p, from, t)| Step::Store(w, p, from, t)),
        8 => (0..4usize, path(longest), prop::option::of(tier())).prop_map(|(w, p, t)| Step::Remove(w, p, t)),
        1 => (0..4usize).prop_map(Step::Clear),
        1 => (0..4usize).prop_map(Step::Forget),
        6 => path(longest).prop_map(Step::LookUp),
    ]
}

/// Runs the steps on both, and looks up after each.
fn compare(steps: Vec<Step>, sizes: [u32; 4]) {
    let index = KvIndex::new(LARGE);
    let workers: Vec<Worker> = (0..)
        .zip(sizes)
        .map(|(number, size)| Worker::new(number, size))
        .collect();
    let mut naive = Naive::default();
    for step in steps {
        let mut asked = Vec::new();
        match step {
            Step::Store(worker, path, from, tier) => {
                let worker = &workers[worker];
                let from = if from < 3 { 0 } else { (from - 2).min(path.len()) };
                asked = prompt(&path, worker.page_size);
                index.apply(worker.target, &[worker.stores(&asked, from, tier)]);
                naive.store(worker, &asked, from, tier);
            }
            Step::Remove(worker, path, tier) => {
                let worker = &workers[worker];
                asked = prompt(&path, worker.page_size);
                index.apply(worker.target, &[worker.removes(&asked, tier)]);
                naive.remove(worker, &asked, tier);
            }
            Step::Clear(worker) => {
                index.apply(workers[worker].target, &[KvEvent::Cleared]);
                naive.held.remove(&workers[worker].target.worker);
            }
            Step::Forget(worker) => {
                index.forget(workers[worker].target);
                naive.held.remove(&workers[worker].target.worker);
            }
            Step::LookUp(path) => asked = prompt(&path, 16),
        }
        asked.push(9);
        assert_eq!(found(&index, &asked), naive.found(&workers, &asked));
        let inner = index.inner.read();
        inner.check();
        let held: usize = naive.held.values().map(HashMap::len).sum();
        assert_eq!(inner.held_bits(), held);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equals_the_naive_index_at_page_1(steps in prop::collection::vec(step(8), 1..120)) {
        compare(steps, [1, 1, 1, 1]);
    }

    #[test]
    fn equals_the_naive_index_at_page_16(steps in prop::collection::vec(step(5), 1..120)) {
        compare(steps, [16, 16, 16, 16]);
    }

    #[test]
    fn equals_the_naive_index_with_several_page_sizes(steps in prop::collection::vec(step(8), 1..120)) {
        compare(steps, [4, 4, 1, 16]);
    }

    /// Under a tight limit pages are missing, but nothing is made up.
    #[test]
    fn claims_nothing_that_is_not_held_under_a_tight_limit(
        steps in prop::collection::vec((0..4usize, 0..30u32, 1..200usize, any::<bool>()), 1..80),
    ) {
        let index = KvIndex::new(MIN_LIMIT);
        let workers: Vec<Worker> = [1, 1, 4, 16].into_iter().zip(0..).map(|(s, n)| Worker::new(n, s)).collect();
        let mut naive = Naive::default();
        for (worker, stem, len, stores) in steps {
            let worker = &workers[worker];
            let pages: Vec<u32> = (stem / 3 * 1000..).take(len).collect();
            let tokens = prompt(&pages, worker.page_size);
            if stores {
                index.apply(worker.target, &[worker.stores(&tokens, 0, Tier::Device)]);
                naive.store(worker, &tokens, 0, Tier::Device);
            } else {
                index.apply(worker.target, &[worker.removes(&tokens, None)]);
                naive.remove(worker, &tokens, None);
            }
            index.inner.read().check();
            let truth: HashMap<_, _> = naive.found(&workers, &tokens).into_iter().collect();
            for (worker, counts) in found(&index, &tokens) {
                prop_assert!(counts[0] <= truth.get(&worker).map_or(0, |counts| counts[0]));
            }
        }
    }
}
