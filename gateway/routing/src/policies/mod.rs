//! One policy per file, and the list of them.

mod bucket;
mod cache_aware;
mod consistent_hashing;
mod least_load;
mod manual;
mod power_of_two;
mod prefix_hash;
mod random;
mod round_robin;
#[cfg(test)]
pub(crate) mod testing;

use crate::policy::{Policy, PolicyParams};

type Build = fn(PolicyParams) -> Box<dyn Policy>;

/// Every policy under its name.
const ALL: &[(&str, Build)] = &[
    (random::NAME, |_| Box::new(random::Random)),
    (
        round_robin::NAME,
        |_| Box::new(round_robin::RoundRobin::default()),
    ),
    (cache_aware::NAME, |params| {
        Box::new(cache_aware::CacheAware::new(params))
    }),
    (power_of_two::NAME, |_| Box::new(power_of_two::PowerOfTwo)),
    (least_load::NAME, |params| {
        Box::new(least_load::LeastLoad::new(params))
    }),
    (prefix_hash::NAME, |params| {
        Box::new(prefix_hash::PrefixHash::new(params))
    }),
    (consistent_hashing::NAME, |_| {
        Box::new(consistent_hashing::ConsistentHashing::default())
    }),
    (manual::NAME, |params| Box::new(manual::Manual::new(params))),
    (bucket::NAME, |params| Box::new(bucket::Bucket::new(params))),
];

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown policy {given:?}; choose one of {}", policy_names().collect::<Vec<_>>().join(", "))]
pub struct UnknownPolicy {
    pub given: String,
}

pub fn policy_names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// The policy with this name.
pub fn build_policy(name: &str, params: PolicyParams) -> Result<Box<dyn Policy>, UnknownPolicy> {
    ALL.iter()
        .find(|(known, _)| *known == name)
        .map(|(_, build)| build(params))
        .ok_or_else(|| UnknownPolicy {
            given: name.to_owned(),
        })
}

#[cfg(test)]
mod tests;
