//! What a choice costs: `cargo run --release -p smg-routing --example choices`.
//!
//! Prints one JSON object a line: policy, number of workers, nanoseconds a choice takes among candidates as they are
//! (`policy_ns`), and with collecting them and counting the load (`select_ns`).
#![allow(
    clippy::expect_used,
    clippy::disallowed_methods,
    reason = "a measurement reads the clock"
)]

use std::hint::black_box;
use std::time::Instant;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use smg_routing::{
    Candidate, PolicyParams, Probe, Query, Role, RouteRequest, WorkerId, WorkerInfo, WorkerParams, WorkerSet,
    build_policy, policy_names, prefix_key, routing_key,
};

const WORKERS: [u64; 3] = [8, 128, 1024];

/// Shortest time that is believed.
const LEAST_MILLIS: u128 = 100;

fn main() {
    for name in policy_names() {
        for num_workers in WORKERS {
            let (policy_ns, select_ns) = (time_policy(name, num_workers), time_select(name, num_workers));
            println!(
                r#"{{"policy":"{name}","workers":{num_workers},"policy_ns":{policy_ns:.0},"select_ns":{select_ns:.0}}}"#
            );
        }
    }
}

fn request(number: u32, now: Instant) -> RouteRequest {
    RouteRequest {
        routing_key: Some(routing_key(&format!("user-{}", number % 1000))),
        prefix_key: prefix_key(&[number % 100; 64], 256, ""),
        ..RouteRequest::new(now, 1000 + (number % 7) as usize * 300, 200)
    }
}

fn time_policy(name: &str, num_workers: u64) -> f64 {
    let policy = build_policy(name, PolicyParams::default()).expect("listed");
    let mut rng = SmallRng::seed_from_u64(1);
    let now = Instant::now();
    let candidates: Vec<Candidate> = (0..num_workers)
        .map(|number| {
            let mut candidate =
                Candidate::new(WorkerId::new(number), number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            candidate.own.requests = (number % 5) as usize;
            candidate.own.prefill_tokens = (number % 7) as usize * 100;
            candidate
        })
        .collect();
    let requests: Vec<RouteRequest> = (0..1000).map(|number| request(number, now)).collect();
    nanoseconds(|round| {
        let request = &requests[round % requests.len()];
        black_box(policy.choose(request, &candidates, &mut rng));
    })
}

fn time_select(name: &str, num_workers: u64) -> f64 {
    let policy = build_policy(name, PolicyParams::default()).expect("listed");
    let mut rng = SmallRng::seed_from_u64(1);
    let now = Instant::now();
    let set = WorkerSet::new(WorkerParams::default());
    for number in 0..num_workers {
        let info = WorkerInfo {
            model: Some("model".to_owned()),
            ..WorkerInfo::default()
        };
        let worker = set
            .add(&format!("grpc://worker-{number}:1"), info)
            .expect("a free URL");
        worker.observe(Probe::Healthy);
    }
    let cached: Vec<(WorkerId, usize)> = set
        .list()
        .iter()
        .take(16)
        .map(|worker| (worker.id(), 512))
        .collect();
    let requests: Vec<RouteRequest> = (0..1000).map(|number| request(number, now)).collect();
    nanoseconds(|round| {
        let query = Query {
            model: Some("model"),
            role: Role::Regular,
            request: requests[round % requests.len()],
            cached: &cached,
            avoid: &[],
            only: None,
        };
        drop(black_box(set.select(&query, &*policy, &mut rng)));
    })
}

/// Time of one call, of as many as fill [`LEAST_MILLIS`] after a warm-up.
fn nanoseconds(mut call: impl FnMut(usize)) -> f64 {
    for round in 0..200 {
        call(round);
    }
    let mut rounds = 1000;
    loop {
        let start = Instant::now();
        for round in 0..rounds {
            call(round);
        }
        let elapsed = start.elapsed();
        if elapsed.as_millis() >= LEAST_MILLIS {
            return elapsed.as_nanos() as f64 / rounds as f64;
        }
        rounds *= 2;
    }
}
