//! Whole gateways under faults by chance: workers that die, return, hang, refuse, lie or lose events, and clients that
//! leave. `--seeds N` runs so many of them from `--first SEED` on, and tells the seed of each that went wrong.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

#[path = "../common/mod.rs"]
mod common;
mod plan;
mod world;

use std::{panic::AssertUnwindSafe, process::ExitCode, time::Duration};

use plan::Plan;
use world::{Kind, Tally};

/// What `cargo test` runs.
const DEFAULT_SEEDS: u64 = 60;

/// Virtual time of one seed. Everything in it has limits of its own, which are far shorter.
const LIMIT: Duration = Duration::from_secs(3600);

struct Wanted {
    first: u64,
    seeds: u64,
}

fn main() -> ExitCode {
    let Some(wanted) = Wanted::from_args(std::env::args().skip(1)) else {
        return ExitCode::SUCCESS;
    };
    let mut sum = Tally::default();
    for seed in wanted.first..wanted.first + wanted.seeds {
        let tally = run(seed);
        for (kind, words) in &tally.findings {
            println!("seed {seed}: {}: {words}", kind.name());
        }
        if !tally.findings.is_empty() {
            println!("seed {seed}: again with make sim SEEDS=1 FIRST={seed}");
        }
        sum.add(tally);
    }
    println!("{} seeds: {}", wanted.seeds, sum.words());
    // Of some seeds together each way to end must have been seen, or they prove nothing.
    let is_idle = wanted.seeds >= 20 && !sum.has_all_ends();
    if is_idle {
        println!("no client got its answer, an error, or left: the faults are too many or too few");
    }
    if sum.findings.is_empty() && !is_idle {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn run(seed: u64) -> Tally {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let plan = Plan::of(seed);
    let whole =
        AssertUnwindSafe(|| runtime.block_on(async { tokio::time::timeout(LIMIT, world::run(&plan)).await }));
    match std::panic::catch_unwind(whole) {
        Ok(Ok(tally)) => tally,
        Ok(Err(_)) => Tally::of(Kind::Stuck, format!("not at its end after {LIMIT:?}")),
        Err(_) => Tally::of(Kind::Stuck, "it panicked; see above".to_owned()),
    }
}

// === impl Wanted ===

impl Wanted {
    /// `None`: the test runner asks for other tests, or for their names.
    fn from_args(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut wanted = Self {
            first: 0,
            seeds: DEFAULT_SEEDS,
        };
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seeds" => wanted.seeds = args.next().unwrap().parse().expect("--seeds takes a number"),
                "--first" => wanted.first = args.next().unwrap().parse().expect("--first takes a number"),
                "--list" => return None,
                name if !name.starts_with('-') && !"sim".contains(name) => return None,
                _ => {}
            }
        }
        Some(wanted)
    }
}
