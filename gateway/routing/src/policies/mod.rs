//! One policy per file, and the list of them.

mod cache_aware;
mod power_of_two;
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
mod tests {
    use super::testing::{Load, now, workers};
    use super::*;
    use crate::policy::RouteRequest;

    fn every_policy() -> impl Iterator<Item = Box<dyn Policy>> {
        policy_names().map(|name| build_policy(name, PolicyParams::default()).expect("listed"))
    }

    #[test]
    fn every_policy_is_found_under_its_name() {
        for (name, policy) in policy_names().zip(every_policy()) {
            assert_eq!(policy.name(), name);
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = build_policy("fastest", PolicyParams::default())
            .err()
            .expect("no such policy");
        assert_eq!(
            error.to_string(),
            "unknown policy \"fastest\"; choose one of random, round_robin, cache_aware, power_of_two"
        );
    }

    #[test]
    fn no_policy_chooses_among_none_and_every_one_takes_the_only_one() {
        let mut rng = rand::rng();
        let only = workers([Load::IDLE]);
        let request = RouteRequest::new(now(), 8, 8);
        for policy in every_policy() {
            assert_eq!(policy.choose(&request, &[], &mut rng), None);
            assert_eq!(policy.choose(&request, &only, &mut rng), Some(0));
        }
    }
}
