//! One tenant: its limits, what it has used of them, and what it runs.

use std::time::{Duration, Instant};

use crate::bucket::Bucket;
use crate::holds::Holds;

/// Who asks. Ids are made by the caller; equal ones share limits and turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u128);

/// What a tenant may use; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    /// Requests that run at once.
    pub max_running: Option<usize>,
    /// Share of the work where several wait, in relation to others' weights; at least 1.
    pub weight: u32,
}

/// Work given, on a scale that all tenants share.
pub(crate) type Tag = u128;

const MINUTE: Duration = Duration::from_secs(60);

/// A tenant that has asked for nothing in this time is forgotten, unless it has a debt.
const MEMORY: Duration = MINUTE;

#[derive(Debug)]
pub(crate) struct Tenant {
    pub limits: Limits,
    pub requests: Option<Bucket>,
    pub tokens: Option<Bucket>,
    pub running: Holds,
    pub num_waiting: usize,
    /// Where its next request starts, in work.
    pub tag: Tag,
    pub seen_at: Instant,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            requests_per_minute: None,
            tokens_per_minute: None,
            max_running: None,
            weight: 1,
        }
    }
}

impl Tenant {
    pub fn new(limits: Limits, now: Instant) -> Self {
        let bucket = |per_minute: u64| Bucket::new(per_minute, per_minute, MINUTE, now);
        Self {
            limits,
            requests: limits.requests_per_minute.map(bucket),
            tokens: limits.tokens_per_minute.map(bucket),
            running: Holds::default(),
            num_waiting: 0,
            tag: 0,
            seen_at: now,
        }
    }

    /// May start another request, as far as it alone is concerned.
    pub fn has_room(&self) -> bool {
        self.limits
            .max_running
            .is_none_or(|limit| self.running.len() < limit)
    }

    /// How far work of so many tokens moves its tag.
    pub fn stride(&self, tokens: u64) -> Tag {
        // Fine enough for any two weights to differ.
        (Tag::from(tokens) << 32) / Tag::from(self.limits.weight.max(1))
    }

    pub fn take(&mut self, tokens: u64, now: Instant) {
        self.requests.iter_mut().for_each(|bucket| bucket.take(1, now));
        self.tokens.iter_mut().for_each(|bucket| bucket.take(tokens, now));
    }

    /// The request did not come to run.
    pub fn give_back(&mut self, tokens: u64, now: Instant) {
        self.requests.iter_mut().for_each(|bucket| bucket.give(1, now));
        self.tokens.iter_mut().for_each(|bucket| bucket.give(tokens, now));
    }

    /// Puts what a request really used in the place of what it was believed to use.
    pub fn correct(&mut self, believed: u64, used: u64, now: Instant) {
        if let Some(bucket) = &mut self.tokens {
            bucket.take(used.saturating_sub(believed), now);
            bucket.give(believed.saturating_sub(used), now);
        }
        let (believed, used) = (self.stride(believed), self.stride(used));
        self.tag = (self.tag + used).saturating_sub(believed);
    }

    /// Nothing would change if it were unknown.
    pub fn is_forgettable(&self, now: Instant) -> bool {
        let is_full = |bucket: &Option<Bucket>| bucket.as_ref().is_none_or(|bucket| bucket.is_full(now));
        self.num_waiting == 0
            && self.running.is_empty()
            && now.saturating_duration_since(self.seen_at) >= MEMORY
            && is_full(&self.requests)
            && is_full(&self.tokens)
    }
}
