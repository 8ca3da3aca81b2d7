//! The one interface of a routing policy, the values that it decides on, and the list of policies.

use std::fmt;
use std::str::FromStr;

use rand::Rng;

use crate::policies::{cache_aware, power_of_two, random, round_robin};
use crate::worker::WorkerId;

/// A worker that may take the request, as it stands at the moment of the choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    pub worker: WorkerId,
    /// Leading tokens of this prompt that the worker is known or believed to hold.
    pub cached_tokens: usize,
    /// Requests selected for the worker and not finished.
    pub running_requests: usize,
    /// Tokens selected for the worker and not finished.
    pub pending_tokens: usize,
}

/// What a policy may know about the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteRequest {
    pub prompt_tokens: usize,
    /// Tokens that the answer is expected to have. It counts as load of the chosen worker beside the
    /// uncached part of the prompt.
    pub expected_output_tokens: usize,
}

impl RouteRequest {
    /// Work in tokens that the request brings to a worker which holds `cached_tokens` of the prompt. Never
    /// zero, so that a fully cached request still counts.
    pub fn work_on(&self, cached_tokens: usize) -> usize {
        (self.prompt_tokens.saturating_sub(cached_tokens) + self.expected_output_tokens).max(1)
    }
}

/// Chooses one of the candidates.
pub trait Policy: Send + Sync {
    fn name(&self) -> &'static str;

    /// Called once per attempt, while no other choice on the same workers is being made. Returns an index
    /// into `candidates`, `None` only if there are none.
    fn choose(&self, request: &RouteRequest, candidates: &[Candidate], rng: &mut dyn Rng) -> Option<usize>;
}

/// Parameters of all policies; each takes what it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PolicyParams {
    /// cache_aware: share of the prompt (0 to 1) that a worker must hold for its cache to count. Below it
    /// the match is treated as none, so a short common opening does not tie requests to one worker.
    pub cache_threshold: f64,
    /// cache_aware: with `balance_rel_threshold`, the bound on the load gap. A worker is passed over while
    /// it runs more than this many requests more than the least loaded candidate …
    pub balance_abs_threshold: usize,
    /// … and also more than this many times as many (≥ 1).
    pub balance_rel_threshold: f64,
}

impl Default for PolicyParams {
    fn default() -> Self {
        Self {
            cache_threshold: 0.3,
            balance_abs_threshold: 64,
            balance_rel_threshold: 1.5,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    Random,
    RoundRobin,
    CacheAware,
    PowerOfTwo,
}

impl PolicyKind {
    pub const ALL: [Self; 4] = [Self::Random, Self::RoundRobin, Self::CacheAware, Self::PowerOfTwo];

    pub fn name(self) -> &'static str {
        match self {
            Self::Random => random::NAME,
            Self::RoundRobin => round_robin::NAME,
            Self::CacheAware => cache_aware::NAME,
            Self::PowerOfTwo => power_of_two::NAME,
        }
    }

    pub fn build(self, params: PolicyParams) -> Box<dyn Policy> {
        match self {
            Self::Random => Box::new(random::Random),
            Self::RoundRobin => Box::new(round_robin::RoundRobin::default()),
            Self::CacheAware => Box::new(cache_aware::CacheAware::new(params)),
            Self::PowerOfTwo => Box::new(power_of_two::PowerOfTwo),
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown policy {given:?}; choose one of {}", PolicyKind::ALL.map(PolicyKind::name).join(", "))]
pub struct UnknownPolicy {
    pub given: String,
}

impl FromStr for PolicyKind {
    type Err = UnknownPolicy;

    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| UnknownPolicy {
                given: name.to_owned(),
            })
    }
}

/// Index of the candidate with the least `key`; among equals each is as likely.
pub(crate) fn least_by_key<K: PartialOrd>(
    candidates: impl IntoIterator<Item = (usize, K)>,
    rng: &mut dyn Rng,
) -> Option<usize> {
    use rand::RngExt;
    let mut best: Option<(usize, K)> = None;
    let mut equals = 0u32;
    for (index, key) in candidates {
        match &best {
            Some((_, least)) if key > *least => continue,
            // The n-th equal replaces the one held with probability 1/n.
            Some((_, least)) if key == *least => {
                equals += 1;
                if rng.random_range(0..equals) != 0 {
                    continue;
                }
            }
            _ => equals = 1,
        }
        best = Some((index, key));
    }
    best.map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_found_under_its_name() {
        for kind in PolicyKind::ALL {
            assert_eq!(kind.name().parse(), Ok(kind));
            assert_eq!(kind.build(PolicyParams::default()).name(), kind.name());
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = "fastest".parse::<PolicyKind>().expect_err("no such policy");
        assert_eq!(
            error.to_string(),
            "unknown policy \"fastest\"; choose one of random, round_robin, cache_aware, power_of_two"
        );
    }

    #[test]
    fn no_policy_chooses_among_none_and_every_one_takes_the_only_one() {
        let mut rng = rand::rng();
        let only = [Candidate {
            worker: WorkerId::new(1),
            cached_tokens: 0,
            running_requests: 0,
            pending_tokens: 0,
        }];
        for kind in PolicyKind::ALL {
            let policy = kind.build(PolicyParams::default());
            let request = RouteRequest {
                prompt_tokens: 8,
                expected_output_tokens: 8,
            };
            assert_eq!(policy.choose(&request, &[], &mut rng), None);
            assert_eq!(policy.choose(&request, &only, &mut rng), Some(0));
        }
    }
}
