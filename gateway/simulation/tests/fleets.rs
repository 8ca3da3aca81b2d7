//! Whole simulations, small ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "test code")]

use std::num::NonZeroU32;
use std::time::Instant;

use smg_simulation::{
    EngineParams, Outcome, Params, Report, Speed, Trace, TraceParams, possible_hit_rate, simulate,
    synthetic_names,
};

fn params(policies: &[&str], num_workers: usize) -> Params {
    Params {
        num_workers,
        num_gateways: 1,
        policies: policies.iter().map(|name| (*name).to_owned()).collect(),
        engine: EngineParams {
            speed: Speed {
                prefill_rate: 10_000.0,
                step_ms: 8.0,
                request_us: 100.0,
                kv_token_ns: 40.0,
            },
            page_size: NonZeroU32::new(64).unwrap(),
            kv_tokens: 100_000,
            prefill_budget: 8192,
        },
        event_delay_ms: Some(20.0),
        seed: 1,
    }
}

fn trace(name: &str, num_requests: usize, num_workers: usize) -> Trace {
    let params = TraceParams {
        name: name.to_owned(),
        num_requests: Some(num_requests),
        num_workers,
        seed: 1,
        ..TraceParams::default()
    };
    Trace::new(&params).expect("a built-in trace")
}

#[expect(clippy::disallowed_methods, reason = "any moment will do")]
fn run(params: &Params, trace: &Trace) -> Vec<Outcome> {
    simulate(params, trace, Instant::now(), &mut |_, _, _| {}).expect("allowed")
}

fn report(params: &Params, trace: &Trace) -> String {
    let possible = possible_hit_rate(params, trace).expect("allowed");
    Report::new(params, trace, possible, &run(params, trace)).json()
}

fn every_policy() -> Vec<&'static str> {
    Params::policy_names().collect()
}

#[test]
fn each_request_ends_once_under_every_policy_and_no_token_is_lost() {
    for (name, _) in synthetic_names() {
        let trace = trace(name, 40, 3);
        let (mut prompts, mut answers) = (0, 0);
        for request in trace.requests().expect("made") {
            let content = request.expect("made").content;
            prompts += content.prompt_len() as u64;
            answers += content.output_len() as u64;
        }
        let params = Params {
            num_gateways: 2,
            ..params(&every_policy(), 3)
        };
        let possible = possible_hit_rate(&params, &trace).expect("made");
        for outcome in run(&params, &trace) {
            let who = format!("{name} {}", outcome.policy());
            assert_eq!((outcome.num_ended(), outcome.num_refused()), (40, 0), "{who}");
            assert_eq!(
                (outcome.prompt_tokens(), outcome.output_tokens()),
                (prompts, answers),
                "{who}"
            );
            assert!(outcome.hit_rate() <= possible, "{who}");
            assert!(
                outcome.utilization() <= 1.0 && outcome.imbalance() >= 1.0,
                "{who}"
            );
            let ttft = outcome.ttft();
            assert!(ttft.p50 <= ttft.p90 && ttft.p90 <= ttft.p99, "{who}");
        }
    }
}

#[test]
fn a_seed_gives_one_report_and_another_seed_another() {
    let trace = trace("shared-prompts", 40, 2);
    let first = Params {
        num_gateways: 2,
        ..params(&every_policy(), 2)
    };
    let again = report(&first, &trace);
    assert_eq!(report(&first, &trace), again);
    assert_ne!(report(&Params { seed: 2, ..first }, &trace), again);
}

#[test]
fn with_one_worker_all_policies_are_equal() {
    let trace = trace("multi-turn", 60, 1);
    let outcomes = run(&params(&every_policy(), 1), &trace);
    let figures = |outcome: &Outcome| {
        (
            outcome.ttft(),
            outcome.tpot(),
            outcome.hit_rate(),
            outcome.seconds(),
        )
    };
    for outcome in &outcomes {
        assert_eq!(figures(outcome), figures(&outcomes[0]), "{}", outcome.policy());
    }
}

/// It is greedy, so it may be a little behind.
#[test]
fn nobody_leaves_the_oracle_behind_in_both_hits_and_time() {
    for (name, _) in synthetic_names() {
        let trace = trace(name, 100, 4);
        let outcomes = run(&params(&every_policy(), 4), &trace);
        let oracle = outcomes
            .iter()
            .find(|outcome| outcome.policy() == "oracle")
            .expect("it ran");
        for other in &outcomes {
            let has_hits = oracle.hit_rate() >= other.hit_rate() - 0.03;
            let is_fast = oracle.ttft().p90 <= other.ttft().p90 * 1.02;
            let figures = |outcome: &Outcome| (outcome.hit_rate(), outcome.ttft());
            assert!(
                has_hits || is_fast,
                "{name}: {:?} beside {:?} of {}",
                figures(oracle),
                figures(other),
                other.policy()
            );
        }
    }
}

#[test]
fn what_is_known_of_caches_is_worth_more_than_chance() {
    let trace = trace("multi-turn", 150, 4);
    let hit_rate = |params: &Params| run(params, &trace)[0].hit_rate();
    let told = params(&["cache_aware"], 4);
    let by_chance = hit_rate(&params(&["random"], 4));
    assert!(hit_rate(&told) > 1.2 * by_chance);
    // What was sent stands in for what is told.
    assert!(
        hit_rate(&Params {
            event_delay_ms: None,
            ..told
        }) > 1.2 * by_chance
    );
}

#[test]
fn what_comes_late_is_worth_less() {
    let trace = trace("agents", 60, 4);
    let hit_rate = |delay| {
        let params = Params {
            event_delay_ms: Some(delay),
            ..params(&["cache_aware"], 4)
        };
        run(&params, &trace)[0].hit_rate()
    };
    assert!(hit_rate(1.0) > hit_rate(60_000.0));
}

#[test]
fn more_memory_and_more_speed_help() {
    let trace = trace("multi-turn", 100, 1);
    let mut small = params(&["cache_aware"], 1);
    small.engine.kv_tokens = 20_000;
    let (mut large, mut fast) = (small.clone(), small.clone());
    large.engine.kv_tokens *= 10;
    fast.engine.speed.prefill_rate *= 4.0;
    let run = |params| run(params, &trace).remove(0);
    assert!(run(&large).hit_rate() > run(&small).hit_rate());
    assert!(run(&fast).ttft().p50 < run(&small).ttft().p50);
}

#[test]
fn what_no_engine_can_hold_is_refused_and_counted() {
    let trace = trace("agents", 50, 2);
    let mut params = params(&["cache_aware"], 2);
    params.engine.kv_tokens = 12_800;
    let longer = trace.requests().expect("made").filter(|request| {
        let content = &request.as_ref().expect("made").content;
        (content.prompt_len() + content.output_len()).div_ceil(64) > 200
    });
    let num_longer = longer.count();
    assert!(num_longer > 0);
    let outcome = run(&params, &trace).remove(0);
    assert_eq!(
        (outcome.num_refused(), outcome.num_ended()),
        (num_longer, 50 - num_longer)
    );
}

#[test]
fn the_table_is_ranked_and_says_by_what() {
    let trace = trace("shared-prompts", 100, 2);
    let params = params(&["random", "oracle"], 2);
    let possible = possible_hit_rate(&params, &trace).expect("made");
    let report = Report::new(&params, &trace, possible, &run(&params, &trace));
    assert!(report.policies.is_sorted_by(|a, b| a.ttft.p99 <= b.ttft.p99));
    let table = report.table();
    assert!(table.contains("ranked by the p99 of the time to the first token"));
    for (place, row) in report.policies.iter().enumerate() {
        assert!(
            table
                .lines()
                .nth(4 + place)
                .is_some_and(|line| line.starts_with(&row.policy)),
            "{table}"
        );
    }
    let oracle = report
        .policies
        .iter()
        .find(|row| row.policy == "oracle")
        .expect("it ran");
    assert_eq!(oracle.hit_rate_of_oracle, Some(1.0));
}

#[test]
fn what_is_not_allowed_is_told_with_what_is() {
    let trace = trace("uniform", 1, 1);
    let told = |params: Params| {
        #[expect(clippy::disallowed_methods, reason = "any moment will do")]
        let error = simulate(&params, &trace, Instant::now(), &mut |_, _, _| {});
        error.expect_err("not allowed").to_string()
    };
    let known = every_policy().join(", ");
    assert_eq!(
        told(params(&["fastest"], 1)),
        format!("--policy: unknown policy \"fastest\"; choose one of {known}")
    );
    assert_eq!(
        told(params(&["random", "random"], 1)),
        "--policy: random is named twice; name each policy once"
    );
    assert_eq!(
        told(params(&["random"], 0)),
        "--workers: 0 is not allowed; give 1 to 4096 workers"
    );
    let mut small = params(&["random"], 1);
    small.engine.kv_tokens = 10;
    assert_eq!(
        told(small),
        "--kv-tokens: 10 is not allowed; give 64 to 1000000000 tokens (the least is a page)"
    );
    let mut slow = params(&["random"], 1);
    slow.engine.speed.prefill_rate = f64::NAN;
    assert_eq!(
        told(slow),
        "--prefill-rate: NaN is not allowed; give 0.001 to 1000000000 tokens per second"
    );
    let unknown = TraceParams {
        name: "chats".to_owned(),
        num_workers: 1,
        ..TraceParams::default()
    };
    assert_eq!(
        Trace::new(&unknown).expect_err("no such trace").to_string(),
        "--trace: unknown trace \"chats\"; choose one of shared-prompts, multi-turn, agents, uniform"
    );
}
