use super::*;
use crate::policies::testing::{Load, now, worker};

fn report(queued_tokens: usize, requests: usize) -> LoadReport {
    LoadReport {
        at: now(),
        queued_tokens,
        requests,
        kv_usage: 0.5,
    }
}

fn load(requests: usize, prefill_tokens: usize) -> OwnLoad {
    OwnLoad {
        requests,
        prefill_tokens,
        output_tokens: 10 * requests,
    }
}

#[test]
fn a_report_is_corrected_by_what_was_sent_and_what_has_ended_since() {
    let counters = Counters::default();
    counters.add(load(2, 500));
    counters.set_report(Some(report(800, 5)));
    let corrected = || {
        counters
            .report(counters.own())
            .map(|r| (r.queued_tokens, r.requests))
    };
    assert_eq!(corrected(), Some((800, 5)));
    counters.add(load(1, 300));
    assert_eq!(corrected(), Some((1100, 6)));
    counters.subtract(load(2, 500));
    assert_eq!(corrected(), Some((600, 4)));
    counters.subtract(load(1, 300));
    assert_eq!(corrected(), Some((300, 3)));
    counters.set_report(Some(report(0, 0)));
    assert_eq!(corrected(), Some((0, 0)));
    counters.set_report(None);
    assert_eq!(corrected(), None);
}

#[test]
fn a_report_never_falls_below_nothing() {
    let counters = Counters::default();
    counters.add(load(3, 900));
    counters.set_report(Some(report(100, 1)));
    counters.subtract(load(3, 900));
    let corrected = counters.report(counters.own()).expect("reported");
    assert_eq!((corrected.queued_tokens, corrected.requests), (0, 0));
}

#[test]
fn the_larger_of_report_and_own_count_holds_while_the_report_is_fresh() {
    let mut candidate = worker(1, Load::queued(4, 700));
    candidate.report = Some(report(900, 2));
    assert_eq!(
        (candidate.queued_tokens(now()), candidate.requests(now())),
        (900, 4)
    );
    candidate.report = Some(report(100, 6));
    assert_eq!(
        (candidate.queued_tokens(now()), candidate.requests(now())),
        (700, 6)
    );
    assert_eq!(candidate.output_tokens(now()), 2 * FOREIGN_OUTPUT_TOKENS);
    assert_eq!(candidate.kv_usage(now()), Some(0.5));
    let later = now() + REPORT_LIFETIME + Duration::from_millis(1);
    assert_eq!(candidate.requests(later), 4);
    assert_eq!(candidate.kv_usage(later), None);
}

#[test]
fn a_rate_is_tokens_over_time_and_the_latest_count_most() {
    let rate = PrefillRate::default();
    rate.measure(LEAST_TOKENS - 1, Duration::from_millis(1));
    rate.measure(1000, Duration::ZERO);
    assert_eq!(rate.get(), None);
    rate.measure(1000, Duration::from_secs(1));
    assert_eq!(rate.get(), Some(1000.0));
    for _ in 0..50 {
        rate.measure(4000, Duration::from_secs(1));
    }
    let now = rate.get().expect("measured");
    assert!((3900.0..=4000.0).contains(&now), "{now}");
    rate.forget();
    assert_eq!(rate.get(), None);
}
