//! The load of a worker: what this gateway has given it, and what it says itself.
//!
//! A report is older than the choice that it serves, so it is corrected by what this gateway has sent since and by
//! what has ended since. Of that and the own count the larger holds: the own count misses what other gateways send,
//! the report misses what is on its way.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::policy::Candidate;

/// A report that is older says nothing any more.
pub const REPORT_LIFETIME: Duration = Duration::from_secs(15);

/// Answers of requests that other gateways sent are expected to have so many tokens left.
const FOREIGN_OUTPUT_TOKENS: usize = 128;

/// Requests that this gateway has selected a worker for and that have not ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnLoad {
    pub requests: usize,
    /// Uncached tokens of those prompts whose answer has not begun.
    pub prefill_tokens: usize,
    /// Tokens that the answers are expected to have.
    pub output_tokens: usize,
}

/// What a worker says of its load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadReport {
    pub at: Instant,
    /// Tokens of waiting prompts that are not in its cache.
    pub queued_tokens: usize,
    /// Requests that run or wait there.
    pub requests: usize,
    /// Share (0 to 1) of its KV memory that requests hold.
    pub kv_usage: f32,
}

// === impl OwnLoad ===

impl OwnLoad {
    pub fn pending_tokens(&self) -> usize {
        self.prefill_tokens.saturating_add(self.output_tokens)
    }
}

// === impl Candidate ===

impl Candidate {
    fn fresh_report(&self, now: Instant) -> Option<&LoadReport> {
        let report = self.report.as_ref()?;
        (now.saturating_duration_since(report.at) <= REPORT_LIFETIME).then_some(report)
    }

    /// Tokens of prompts that the worker has to compute before those of a new request.
    pub fn queued_tokens(&self, now: Instant) -> usize {
        let reported = self.fresh_report(now).map_or(0, |report| report.queued_tokens);
        reported.max(self.own.prefill_tokens)
    }

    /// Requests that run or wait at the worker.
    pub fn requests(&self, now: Instant) -> usize {
        let reported = self.fresh_report(now).map_or(0, |report| report.requests);
        reported.max(self.own.requests)
    }

    /// Tokens that the worker has still to generate.
    pub fn output_tokens(&self, now: Instant) -> usize {
        let foreign = self.requests(now) - self.own.requests;
        self.own
            .output_tokens
            .saturating_add(foreign.saturating_mul(FOREIGN_OUTPUT_TOKENS))
    }

    /// Share (0 to 1) of the worker's KV memory that is in use, where it says so.
    pub fn kv_usage(&self, now: Instant) -> Option<f64> {
        let usage = f64::from(self.fresh_report(now)?.kv_usage);
        Some(if usage.is_nan() {
            1.0
        } else {
            usage.clamp(0.0, 1.0)
        })
    }
}

/// The counters of one worker.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    requests: AtomicUsize,
    prefill_tokens: AtomicUsize,
    output_tokens: AtomicUsize,
    report: Mutex<Option<Marked>>,
    /// Whether there is a report: most choices need no lock to see that there is none.
    has_report: AtomicBool,
}

/// A report, and this gateway's load when it arrived.
#[derive(Clone, Copy, Debug)]
struct Marked {
    report: LoadReport,
    own: OwnLoad,
}

// === impl Counters ===

impl Counters {
    pub(crate) fn own(&self) -> OwnLoad {
        OwnLoad {
            requests: self.requests.load(Ordering::Relaxed),
            prefill_tokens: self.prefill_tokens.load(Ordering::Relaxed),
            output_tokens: self.output_tokens.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn add(&self, load: OwnLoad) {
        self.requests.fetch_add(load.requests, Ordering::Relaxed);
        self.prefill_tokens
            .fetch_add(load.prefill_tokens, Ordering::Relaxed);
        self.output_tokens
            .fetch_add(load.output_tokens, Ordering::Relaxed);
    }

    /// Takes back what was added.
    pub(crate) fn subtract(&self, load: OwnLoad) {
        self.requests.fetch_sub(load.requests, Ordering::Relaxed);
        self.prefill_tokens
            .fetch_sub(load.prefill_tokens, Ordering::Relaxed);
        self.output_tokens
            .fetch_sub(load.output_tokens, Ordering::Relaxed);
    }

    pub(crate) fn set_report(&self, report: Option<LoadReport>) {
        let mut held = self.report.lock();
        let own = self.own();
        *held = report.map(|report| Marked { report, own });
        self.has_report.store(held.is_some(), Ordering::Release);
    }

    /// The last report, corrected by what has been sent and has ended since.
    pub(crate) fn report(&self, own: OwnLoad) -> Option<LoadReport> {
        if !self.has_report.load(Ordering::Acquire) {
            return None;
        }
        let Marked { report, own: then } = (*self.report.lock())?;
        let corrected = |told: usize, now: usize, then: usize| told.saturating_add(now).saturating_sub(then);
        Some(LoadReport {
            queued_tokens: corrected(report.queued_tokens, own.prefill_tokens, then.prefill_tokens),
            requests: corrected(report.requests, own.requests, then.requests),
            ..report
        })
    }
}

/// Tokens of prompts that a worker computes per second, from how long it took to get through those before it.
#[derive(Debug, Default)]
pub(crate) struct PrefillRate {
    sums: Mutex<(f64, f64)>,
    /// The rate as the bits of an `f32`; 0 until measured.
    rate: AtomicU32,
}

/// Fewer tokens say more of a request's fixed cost than of the rate.
const LEAST_TOKENS: usize = 64;

/// What is left of a sample's weight after the next one.
const KEPT: f64 = 0.97;

// === impl PrefillRate ===

impl PrefillRate {
    pub(crate) fn get(&self) -> Option<f32> {
        Some(f32::from_bits(self.rate.load(Ordering::Relaxed))).filter(|rate| *rate > 0.0)
    }

    /// `tokens` were computed within `elapsed`.
    pub(crate) fn measure(&self, tokens: usize, elapsed: Duration) {
        if tokens < LEAST_TOKENS || elapsed.is_zero() {
            return;
        }
        let mut sums = self.sums.lock();
        sums.0 = sums.0 * KEPT + tokens as f64;
        sums.1 = sums.1 * KEPT + elapsed.as_secs_f64();
        self.rate
            .store(((sums.0 / sums.1) as f32).to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn forget(&self) {
        *self.sums.lock() = (0.0, 0.0);
        self.rate.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
