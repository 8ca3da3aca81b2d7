//! Measures the index on one core and prints one JSON object a row: `{"name", "unit", "samples"}`.
//!
//! `cargo run --release -p smg-kv-index --example kv_index_bench`

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;

use smg_kv_index::{
    ApproximateIndex, KvEvent, KvIndex, PagedPrompt, PrefixLookup, PromptKeys, RemovedBlocks, StoredBlocks,
    Target, Tier,
};

const REPEATS: usize = 7;
const WORKERS: u64 = 64;
const PROMPT: usize = 4096;
/// Prompts that the index holds besides the measured one, so that its tables are as large as in use.
const OTHERS: u32 = 1000;

fn main() {
    for page_size in [16, 1] {
        let page_size = NonZeroU32::new(page_size).unwrap_or(NonZeroU32::MIN);
        hashing(page_size);
        lookups(page_size);
        updates(page_size, 1);
        updates(page_size, 8);
        beside_a_writer(page_size);
        approximate(page_size);
    }
}

fn report(name: &str, page_size: NonZeroU32, unit: &str, samples: &[f64]) {
    let row =
        serde_json::json!({"name": format!("{name}, page {page_size}"), "unit": unit, "samples": samples});
    println!("{row}");
}

/// Seconds that each call took, as the mean of so many calls, a few times over.
fn timed(calls: usize, mut call: impl FnMut()) -> Vec<f64> {
    call();
    (0..REPEATS)
        .map(|_| {
            let begin = now();
            for _ in 0..calls {
                call();
            }
            begin.elapsed().as_secs_f64() / calls as f64
        })
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn now() -> Instant {
    Instant::now()
}

fn micros(seconds: &[f64]) -> Vec<f64> {
    seconds.iter().map(|seconds| seconds * 1e6).collect()
}

fn prompt(start: u32, len: usize) -> Vec<u32> {
    (0..len as u32)
        .map(|place| start.wrapping_mul(2_654_435_761) ^ (place * 7 + 1))
        .collect()
}

fn target(worker: u64) -> Target {
    Target { worker, rank: 0 }
}

/// Hashes that differ between prompts and places.
fn hashes(start: u32, pages: usize) -> Vec<i64> {
    (0..pages as i64)
        .map(|page| (i64::from(start) << 32 | page).wrapping_mul(0x5851_f42d_4c95_7f2d))
        .collect()
}

fn stored(start: u32, len: usize, page_size: NonZeroU32) -> KvEvent {
    let size = page_size.get() as usize;
    KvEvent::Stored(StoredBlocks {
        tier: Tier::Device,
        namespace: String::new(),
        parent: None,
        block_size: page_size.get(),
        hashes: hashes(start, len / size),
        tokens: prompt(start, len),
    })
}

fn removed(start: u32, len: usize, page_size: NonZeroU32) -> KvEvent {
    let mut hashes = hashes(start, len / page_size.get() as usize);
    hashes.reverse();
    KvEvent::Removed(RemovedBlocks { tier: None, hashes })
}

fn hashing(page_size: NonZeroU32) {
    let tokens = prompt(1, PROMPT);
    let seconds = timed(2000, || {
        black_box(PagedPrompt::new(black_box(&tokens), "", page_size));
    });
    report("keys of 4,096 tokens", page_size, "µs", &micros(&seconds));
}

/// Each worker holds another length of the prompt, and a share of the others.
fn filled(page_size: NonZeroU32) -> KvIndex {
    let index = KvIndex::new(8 << 30);
    let len = if page_size.get() == 1 { PROMPT / 16 } else { PROMPT };
    for start in 0..OTHERS {
        for worker in (u64::from(start) % 8..WORKERS).step_by(8) {
            index.apply(target(worker), &[stored(100 + start, len, page_size)]);
        }
    }
    for worker in 0..WORKERS {
        let len = PROMPT / WORKERS as usize * (worker as usize + 1);
        index.apply(target(worker), &[stored(1, len, page_size)]);
    }
    index
}

fn lookups(page_size: NonZeroU32) {
    let index = filled(page_size);
    let same = PromptKeys::new(prompt(1, PROMPT), "");
    same.paged(page_size);
    let seconds = timed(10_000, || {
        black_box(index.lookup(black_box(&same)));
    });
    report(
        "lookup of 4,096 tokens, 64 workers part one by one",
        page_size,
        "µs",
        &micros(&seconds),
    );

    let others: Vec<PromptKeys> = (0..OTHERS)
        .map(|start| PromptKeys::new(prompt(100 + start, PROMPT), ""))
        .collect();
    for keys in &others {
        keys.paged(page_size);
    }
    let mut next = others.iter().cycle();
    let seconds = timed(10_000, || {
        black_box(next.next().map(|keys| index.lookup(keys)));
    });
    report(
        "lookup of 4,096 tokens, another prompt each time",
        page_size,
        "µs",
        &micros(&seconds),
    );
    let stats = index.stats();
    let bytes = stats.bytes as f64 / stats.held_pages as f64;
    report("memory of a held page, 8 holders", page_size, "bytes", &[bytes]);
}

/// Blocks that one core stores and removes, in events of 64 stored blocks, for so many workers with the same prompts.
fn updates(page_size: NonZeroU32, workers: u64) {
    const PROMPTS: u32 = 200;
    let len = 256 * page_size.get() as usize;
    let stores: Vec<KvEvent> = (0..PROMPTS)
        .flat_map(|start| in_parts(start, len, page_size))
        .collect();
    let removes: Vec<KvEvent> = (0..PROMPTS).map(|start| removed(start, len, page_size)).collect();
    let index = KvIndex::new(8 << 30);
    let blocks = workers as usize * 2 * PROMPTS as usize * 256;
    let seconds = timed(1, || {
        for events in [&stores, &removes] {
            for worker in 0..workers {
                for event in events {
                    black_box(index.apply(target(worker), std::slice::from_ref(event)));
                }
            }
        }
    });
    let rates: Vec<f64> = seconds
        .iter()
        .map(|seconds| blocks as f64 / seconds / 1e6)
        .collect();
    report(
        &format!("updates, stored and removed, pages held by {workers}"),
        page_size,
        "M blocks/s",
        &rates,
    );
}

/// The 99th percentile of lookups while another thread stores and removes whole prompts without a pause.
fn beside_a_writer(page_size: NonZeroU32) {
    let index = filled(page_size);
    let keys = PromptKeys::new(prompt(1, PROMPT), "");
    keys.paged(page_size);
    let len = 1024 * page_size.get() as usize;
    let (store, remove) = (stored(7, len, page_size), removed(7, len, page_size));
    let is_over = AtomicBool::new(false);
    let mut seconds = Vec::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                black_box(index.apply(target(0), &[store.clone(), remove.clone()]));
            }
        });
        for _ in 0..REPEATS {
            let mut times: Vec<f64> = (0..1000)
                .map(|_| {
                    let begin = now();
                    black_box(index.lookup(&keys));
                    begin.elapsed().as_secs_f64()
                })
                .collect();
            times.sort_by(f64::total_cmp);
            seconds.push(times[989]);
        }
        is_over.store(true, Relaxed);
    });
    report(
        "lookup beside a busy writer, 99th percentile",
        page_size,
        "µs",
        &micros(&seconds),
    );
}

fn in_parts(start: u32, len: usize, page_size: NonZeroU32) -> Vec<KvEvent> {
    let KvEvent::Stored(whole) = stored(start, len, page_size) else {
        return Vec::new();
    };
    let tokens = whole.tokens.chunks(64 * page_size.get() as usize);
    let parts = whole.hashes.chunks(64).zip(tokens).enumerate();
    parts
        .map(|(part, (hashes, tokens))| {
            KvEvent::Stored(StoredBlocks {
                parent: part.checked_sub(1).map(|before| whole.hashes[before * 64 + 63]),
                hashes: hashes.to_vec(),
                tokens: tokens.to_vec(),
                ..whole.clone()
            })
        })
        .collect()
}

fn approximate(page_size: NonZeroU32) {
    let index = ApproximateIndex::new(page_size, 8 << 30);
    let prompts: Vec<PromptKeys> = (0..64)
        .map(|start| PromptKeys::new(prompt(start, PROMPT), ""))
        .collect();
    for (worker, keys) in (0..).zip(&prompts) {
        index.insert(target(worker % WORKERS), keys);
        index.insert(target((worker + 1) % WORKERS), keys);
    }
    let mut next = prompts.iter().cycle();
    let seconds = timed(500, || {
        black_box(next.next().map(|keys| index.lookup(keys)));
    });
    report(
        "approximate lookup of 4,096 tokens",
        page_size,
        "µs",
        &micros(&seconds),
    );
    let mut next = prompts.iter().cycle();
    let seconds = timed(500, || {
        if let Some(keys) = next.next() {
            index.insert(target(0), keys);
        }
    });
    report(
        "approximate insert of 4,096 tokens",
        page_size,
        "µs",
        &micros(&seconds),
    );
}
