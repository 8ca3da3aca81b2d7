//! Requests of about one length go to one worker, so that short ones do not wait behind long ones. The limits between the
//! workers follow what came lately, so that each gets an equal share of the tokens.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use rand::{Rng, RngExt};

use crate::policy::{Candidate, Policy, PolicyParams, RouteRequest, Verdict, set_name};
use crate::wait::Bound;

pub(crate) const NAME: &str = "bucket";

/// Before anything came, prompts are taken to be of every length up to this one.
const FIRST_SPAN: usize = 4096;

/// Lengths that are kept of one interval; later ones take the places of the earliest.
const MOST_LENGTHS: usize = 4096;

/// A bucket spills at so many requests more than the least loaded, at the latest: no cost weighs load here.
const MOST_REQUESTS_MORE: usize = 64;

/// Fewer lengths say nothing about the next ones.
const LEAST_LENGTHS: usize = 16;

pub(crate) struct Bucket {
    params: PolicyParams,
    window: Mutex<Window>,
    /// The last set of candidates, and their order.
    ordered: Mutex<(u64, Arc<[usize]>)>,
}

#[derive(Default)]
struct Window {
    /// When the present interval began.
    since: Option<Instant>,
    /// Lengths of this interval.
    lengths: Vec<usize>,
    num_seen: usize,
    /// Those of the last interval that had enough: sorted lengths, each with the tokens of all up to it.
    limits: Vec<(usize, u64)>,
}

/// Where one length is among the candidates.
struct Place {
    /// Candidates in the order of their buckets, shortest first.
    order: Arc<[usize]>,
    /// The share (0 to 1) of all tokens that shorter requests have, and that with those of equal length.
    shares: (f64, f64),
    bound: Bound,
}

// === impl Bucket ===

impl Bucket {
    pub(crate) fn new(mut params: PolicyParams) -> Self {
        params.balance_abs_threshold = params.balance_abs_threshold.min(MOST_REQUESTS_MORE);
        Self {
            params,
            window: Mutex::default(),
            ordered: Mutex::new((0, Arc::from([]))),
        }
    }

    /// By stable keys: who comes and goes, and in which order they are listed, does not turn the buckets around.
    fn order(&self, candidates: &[Candidate]) -> Arc<[usize]> {
        let name = set_name(candidates);
        let mut ordered = self.ordered.lock();
        if ordered.0 != name || ordered.1.len() != candidates.len() {
            let mut order: Vec<usize> = (0..candidates.len()).collect();
            order.sort_unstable_by_key(|&index| candidates[index].key);
            *ordered = (name, order.into());
        }
        Arc::clone(&ordered.1)
    }

    fn place(&self, request: &RouteRequest, candidates: &[Candidate]) -> Place {
        Place {
            order: self.order(candidates),
            shares: self.window.lock().shares(request.prompt_tokens),
            bound: Bound::new(&self.params, request, candidates),
        }
    }
}

impl Policy for Bucket {
    fn name(&self) -> &'static str {
        NAME
    }

    fn pick(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize> {
        if candidates.is_empty() {
            return None;
        }
        let place = self.place(request, candidates);
        let (low, high) = place.shares;
        let wanted = place.bucket(low + (high - low) * rng.random_range(0.0..1.0));
        let within = place.order.iter().enumerate();
        within
            .filter(|(_, index)| place.bound.allows(&candidates[**index]))
            .min_by_key(|(bucket, _)| (place.distance(*bucket), bucket.abs_diff(wanted)))
            .map(|(_, index)| *index)
    }

    fn verdicts(&self, request: &RouteRequest, candidates: &[Candidate]) -> Vec<Verdict> {
        if candidates.is_empty() {
            return Vec::new();
        }
        let place = self.place(request, candidates);
        let (first, last) = (place.bucket(place.shares.0), place.bucket(place.shares.1));
        let mut verdicts = vec![Verdict::passed_over(""); candidates.len()];
        for (bucket, &index) in place.order.iter().enumerate() {
            verdicts[index] = if place.bound.allows(&candidates[index]) {
                let reason = format!("bucket {bucket}; the prompt's length is that of {first} to {last}");
                Verdict::new(place.distance(bucket) as f64, reason)
            } else {
                Verdict::passed_over(place.bound.reason(&candidates[index]))
            };
        }
        verdicts
    }

    fn note(&self, request: &RouteRequest, _: &[Candidate], _: usize) {
        let window = &mut *self.window.lock();
        let since = *window.since.get_or_insert(request.now);
        if request.now.saturating_duration_since(since) >= self.params.bucket_adjust_interval {
            window.adjust();
            window.since = Some(request.now);
        }
        window.add(request.prompt_tokens);
    }
}

// === impl Window ===

impl Window {
    fn add(&mut self, length: usize) {
        if self.lengths.len() < MOST_LENGTHS {
            self.lengths.push(length);
        } else {
            self.lengths[self.num_seen % MOST_LENGTHS] = length;
        }
        self.num_seen += 1;
    }

    /// Takes the lengths of the interval that ends as the limits of the next.
    fn adjust(&mut self) {
        self.num_seen = 0;
        if self.lengths.len() < LEAST_LENGTHS {
            self.lengths.clear();
            return;
        }
        self.lengths.sort_unstable();
        let mut sum = 0u64;
        let summed = self.lengths.drain(..).map(|length| {
            // A prompt without tokens is work too.
            sum = sum.saturating_add(length.max(1) as u64);
            (length, sum)
        });
        self.limits = summed.collect();
    }

    fn shares(&self, length: usize) -> (f64, f64) {
        let Some(&(_, all)) = self.limits.last() else {
            let share = (length as f64 / FIRST_SPAN as f64).min(1.0);
            return (share, share);
        };
        let tokens_before = |count: usize| match count {
            0 => 0.0,
            count => self.limits[count - 1].1 as f64 / all as f64,
        };
        let shorter = self.limits.partition_point(|(known, _)| *known < length);
        let equal = self.limits.partition_point(|(known, _)| *known <= length);
        (tokens_before(shorter), tokens_before(equal))
    }
}

// === impl Place ===

impl Place {
    fn bucket(&self, share: f64) -> usize {
        ((share * self.order.len() as f64) as usize).min(self.order.len() - 1)
    }

    /// How far a bucket is from those that have the request's length. A bucket that is full spills into the nearest.
    fn distance(&self, bucket: usize) -> usize {
        let (first, last) = (self.bucket(self.shares.0), self.bucket(self.shares.1));
        first.saturating_sub(bucket).max(bucket.saturating_sub(last))
    }
}

#[cfg(test)]
mod tests;
