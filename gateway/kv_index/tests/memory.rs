//! What the indexes say of their memory, beside what an allocator counts.
#![expect(unsafe_code, reason = "an allocator is unsafe by its trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use smg_kv_index::{
    ApproximateIndex, KvEvent, KvIndex, PrefixLookup, PromptKeys, RemovedBlocks, StoredBlocks, Target, Tier,
};

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

struct Counting;

unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(now, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that were allocated since, now and at most.
struct Since(usize);

impl Since {
    fn now() -> Self {
        PEAK.store(NOW.load(Relaxed), Relaxed);
        Self(NOW.load(Relaxed))
    }

    fn allocated(&self) -> usize {
        NOW.load(Relaxed).saturating_sub(self.0)
    }

    fn peak(&self) -> usize {
        PEAK.load(Relaxed).saturating_sub(self.0)
    }
}

fn target(worker: u64) -> Target {
    Target { worker, rank: 0 }
}

fn hash(start: u32, page: usize) -> i64 {
    (i64::from(start) << 20) + page as i64
}

fn stored(start: u32, pages: usize) -> KvEvent {
    KvEvent::Stored(StoredBlocks {
        tier: Tier::Device,
        namespace: String::new(),
        parent: None,
        block_size: 1,
        hashes: (0..pages).map(|page| hash(start, page)).collect(),
        tokens: (start * 10_000..).take(pages).collect(),
    })
}

fn prompt(start: u32, pages: usize) -> PromptKeys {
    PromptKeys::new((start * 10_000..).take(pages).collect::<Vec<u32>>(), "")
}

fn assert_near(estimate: usize, counted: usize, what: &str) {
    let ratio = estimate as f64 / counted as f64;
    assert!(
        (0.75..=1.25).contains(&ratio),
        "{what}: says {estimate}, takes {counted}"
    );
}

fn the_estimate_is_near_what_is_allocated() {
    for (what, holders, pages) in [
        ("one holder", 1, 100),
        ("eight holders", 8, 100),
        ("short prompts", 1, 2),
        ("wide sets", 200, 20),
    ] {
        let before = Since::now();
        let index = KvIndex::new(1 << 30);
        for start in 0..1_000 / holders as u32 {
            for worker in 0..holders {
                index.apply(target(worker + u64::from(start % 3)), &[stored(start, pages)]);
            }
        }
        assert_near(index.stats().bytes, before.allocated(), what);
        // Every other page of a holder goes: as many runs as pages.
        for start in 0..1_000 / holders as u32 / 2 {
            let hashes = (0..pages).step_by(2).map(|page| hash(start, page)).collect();
            index.apply(
                target(u64::from(start % 3)),
                &[KvEvent::Removed(RemovedBlocks { tier: None, hashes })],
            );
        }
        assert_near(index.stats().bytes, before.allocated(), &format!("{what}, holes"));
        let full = index.stats().bytes;
        for worker in 0..holders + 3 {
            index.forget(target(worker));
        }
        assert_eq!(index.stats().pages, 0);
        assert!(index.stats().bytes * 3 < full * 2, "{what}: gives back");
        assert_near(
            index.stats().bytes,
            before.allocated(),
            &format!("{what}, forgotten"),
        );
    }
}

fn a_million_pages_stay_inside_the_limit() {
    const LIMIT: usize = 24 << 20;
    let before = Since::now();
    let index = KvIndex::new(LIMIT);
    for start in 0..10_000 {
        let applied = index.apply(target(u64::from(start % 8)), &[stored(start, 100)]);
        assert_eq!((applied.stored, applied.dropped), (100, 0));
    }
    let stats = index.stats();
    assert!(before.peak() <= LIMIT, "{} of {LIMIT}, {stats:?}", before.peak());
    // The limit is used, and the latest prompts are the ones that are kept.
    assert!(stats.bytes > LIMIT / 2 && stats.pages > 100_000, "{stats:?}");
    assert_eq!(stats.evicted + stats.pages as u64, 1_000_000);
    for start in 9_500..10_000 {
        assert_eq!(index.lookup(&prompt(start, 100))[0].device_tokens, 100);
    }
}

fn pages_of_one_target_stay_inside_the_limit() {
    const LIMIT: usize = 8 << 20;
    let before = Since::now();
    let index = KvIndex::new(LIMIT);
    for start in 0..300 {
        index.apply(target(1), &[stored(start, 1_000)]);
    }
    let stats = index.stats();
    assert!(before.peak() <= LIMIT, "{} of {LIMIT}, {stats:?}", before.peak());
    assert!(stats.bytes > LIMIT / 3, "{stats:?}");
    assert_eq!(index.lookup(&prompt(299, 1_000))[0].device_tokens, 1_000);
}

fn sent_pages_stay_inside_the_limit() {
    const LIMIT: usize = 8 << 20;
    let before = Since::now();
    let index = ApproximateIndex::new(NonZeroU32::MIN, LIMIT);
    for start in 0..3_000 {
        index.insert(target(u64::from(start % 8)), &prompt(start, 100));
        if start == 500 {
            assert_near(index.bytes(), before.allocated(), "approximate");
        }
    }
    assert!(before.peak() <= LIMIT, "{} of {LIMIT}", before.peak());
    assert_eq!(index.evicted() + index.held_pages() as u64, 300_000);
    assert!(index.bytes() > LIMIT / 2);
    assert_near(index.bytes(), before.allocated(), "approximate, full");
    for start in 2_900..3_000 {
        assert_eq!(index.lookup(&prompt(start, 100))[0].device_tokens, 100);
    }
}

/// One test: the allocator counts for all threads.
#[test]
fn memory_is_estimated_and_bounded() {
    the_estimate_is_near_what_is_allocated();
    a_million_pages_stay_inside_the_limit();
    pages_of_one_target_stay_inside_the_limit();
    sent_pages_stay_inside_the_limit();
}
