//! How long a new request waits at a worker, in seconds, as far as loads and measured rates tell.
//!
//! ```text
//! wait = (tokens to compute before it / rate + pressure) × the worker's cost
//! pressure = weight × k / (1 − k) where the worker tells its KV usage k,
//!            + tokens to generate / (rate × DECODE_GAIN)
//! ```

use std::time::Instant;

use crate::policy::{Candidate, PolicyParams, RouteRequest};

/// Tokens that are generated for the price of one token of a prompt: passes generate for all requests at once.
const DECODE_GAIN: f64 = 8.0;

/// A rate that is off the mean by less than this share of it counts as the mean: measurements differ by so much
/// between equal workers, and whoever seems the fastest must not get every request of an idle fleet.
const RATE_NOISE: f64 = 0.3;

/// Full memory is bad, and not infinitely so.
const MOST_KV_USAGE: f64 = 0.99;

pub(crate) struct Waits {
    now: Instant,
    kv_pressure_weight: f64,
    mean_rate: f64,
}

impl Waits {
    pub(crate) fn new(params: &PolicyParams, request: &RouteRequest, candidates: &[Candidate]) -> Self {
        let (sum, count) = candidates
            .iter()
            .filter_map(measured_rate)
            .fold((0.0, 0u32), |(sum, count), rate| (sum + rate, count + 1));
        Self {
            now: request.now,
            kv_pressure_weight: params.kv_pressure_weight,
            mean_rate: match count {
                0 => params.default_prefill_rate,
                _ => sum / f64::from(count),
            },
        }
    }

    /// Seconds until the worker has computed what it has and `tokens` more.
    pub(crate) fn with(&self, candidate: &Candidate, tokens: f64) -> f64 {
        let rate = self.rate(candidate);
        let queued = candidate.queued_tokens(self.now) as f64;
        ((queued + tokens) / rate + self.pressure(candidate, rate)) * cost(candidate)
    }

    /// Seconds until the worker has computed what it has.
    pub(crate) fn of(&self, candidate: &Candidate) -> f64 {
        self.with(candidate, 0.0)
    }

    fn pressure(&self, candidate: &Candidate, rate: f64) -> f64 {
        let usage = candidate.kv_usage(self.now).unwrap_or(0.0).min(MOST_KV_USAGE);
        let output = candidate.output_tokens(self.now) as f64;
        self.kv_pressure_weight * usage / (1.0 - usage) + output / (rate * DECODE_GAIN)
    }

    fn rate(&self, candidate: &Candidate) -> f64 {
        let noise = self.mean_rate * RATE_NOISE;
        measured_rate(candidate)
            .filter(|rate| (rate - self.mean_rate).abs() > noise)
            .unwrap_or(self.mean_rate)
    }
}

/// Work at a worker in tokens, weighted by its cost.
pub(crate) fn work(candidate: &Candidate, now: Instant) -> f64 {
    let queued = candidate.queued_tokens(now) as f64;
    (queued + candidate.output_tokens(now) as f64) * cost(candidate)
}

fn measured_rate(candidate: &Candidate) -> Option<f64> {
    candidate
        .prefill_rate
        .map(f64::from)
        .filter(|rate| rate.is_finite() && *rate > 0.0)
}

fn cost(candidate: &Candidate) -> f64 {
    match f64::from(candidate.cost) {
        cost if cost.is_finite() && cost > 0.0 => cost,
        _ => 1.0,
    }
}

/// The bound on how far requests may be spread unevenly: a candidate over it is passed over.
pub(crate) struct Bound {
    most: usize,
    now: Instant,
}

impl Bound {
    pub(crate) fn new(params: &PolicyParams, request: &RouteRequest, candidates: &[Candidate]) -> Self {
        let now = request.now;
        let least = candidates
            .iter()
            .map(|candidate| candidate.requests(now))
            .min()
            .unwrap_or(0);
        let relative = (least as f64 * params.balance_rel_threshold) as usize;
        Self {
            most: relative.max(least.saturating_add(params.balance_abs_threshold)),
            now,
        }
    }

    pub(crate) fn allows(&self, candidate: &Candidate) -> bool {
        candidate.requests(self.now) <= self.most
    }

    pub(crate) fn reason(&self, candidate: &Candidate) -> String {
        format!(
            "passed over: runs {} requests, and at most {} are within the balance thresholds",
            candidate.requests(self.now),
            self.most
        )
    }
}
