//! Which policy chooses among the workers of a model. Each model has one of its own, so that what a policy remembers of
//! one model counts for no other.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use smg_config::GatewayConfig;
use smg_routing::{AssignmentMode, Policy, PolicyParams, UnknownPolicy, build_policy};

/// What the options say of policies.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyRules {
    /// The name of the policy of models that are not in `by_model`.
    pub default: String,
    pub by_model: BTreeMap<String, String>,
    pub params: PolicyParams,
    /// Tokens at the beginning of a prompt that the policy `prefix_hash` goes by.
    pub prefix_token_count: usize,
}

/// A model that is served, with the policy that a label of its workers names.
pub struct ServedModel {
    pub name: String,
    pub label: Option<String>,
}

pub struct Policies {
    /// Held from a look at the workers to the new table.
    rules: Mutex<PolicyRules>,
    table: ArcSwap<Table>,
}

struct Table {
    by_model: HashMap<String, Held>,
    /// For models that no worker has told of yet.
    other: Arc<dyn Policy>,
    prefix_token_count: usize,
}

#[derive(Clone)]
struct Held {
    policy: Arc<dyn Policy>,
    params: PolicyParams,
}

// === impl PolicyRules ===

impl PolicyRules {
    pub fn of(config: &GatewayConfig) -> Self {
        let routing = &config.routing;
        let by_model = config.models.model_policies.iter();
        Self {
            default: routing.policy.name(),
            by_model: by_model
                .map(|given| (given.model.clone(), given.policy.name()))
                .collect(),
            params: PolicyParams {
                cache_threshold: routing.cache_threshold,
                balance_abs_threshold: routing.balance_abs_threshold,
                balance_rel_threshold: routing.balance_rel_threshold,
                prefix_hash_load_factor: routing.prefix_hash_load_factor,
                bucket_adjust_interval: routing.bucket_adjust_interval(),
                max_idle: routing.max_idle(),
                assignment_mode: match routing.assignment_mode {
                    smg_config::AssignmentMode::Random => AssignmentMode::Random,
                    smg_config::AssignmentMode::MinLoad => AssignmentMode::MinLoad,
                    smg_config::AssignmentMode::MinGroup => AssignmentMode::MinGroup,
                },
                kv_pressure_weight: routing.least_load_kv_pressure_weight,
                default_prefill_rate: routing.least_load_default_throughput,
            },
            prefix_token_count: routing.prefix_token_count,
        }
    }

    /// The option goes before the label, both before what holds for all models.
    fn name_for<'a>(&'a self, model: &'a ServedModel) -> &'a str {
        let given = self.by_model.get(&model.name).or(model.label.as_ref());
        given.unwrap_or(&self.default)
    }

    fn build(&self, name: &str) -> Result<Held, UnknownPolicy> {
        Ok(Held {
            policy: build_policy(name, self.params)?.into(),
            params: self.params,
        })
    }
}

// === impl Policies ===

impl Policies {
    pub fn new(rules: PolicyRules) -> Result<Self, UnknownPolicy> {
        let table = Table {
            by_model: HashMap::new(),
            other: rules.build(&rules.default)?.policy,
            prefix_token_count: rules.prefix_token_count,
        };
        Ok(Self {
            rules: Mutex::new(rules),
            table: ArcSwap::from_pointee(table),
        })
    }

    /// That of a model.
    pub fn of(&self, model: &str) -> Arc<dyn Policy> {
        let table = self.table.load();
        let held = table.by_model.get(model).map(|held| &held.policy);
        held.unwrap_or(&table.other).clone()
    }

    pub fn prefix_token_count(&self) -> usize {
        self.table.load().prefix_token_count
    }

    /// Gives each model that is served its policy and forgets those of others. A policy that stays keeps what it
    /// remembers.
    pub fn follow(&self, served: impl FnOnce() -> Vec<ServedModel>) -> Result<(), UnknownPolicy> {
        let rules = self.rules.lock();
        self.rebuild(&rules, &served())
    }

    /// Goes by other rules from now on.
    pub fn change(
        &self,
        new: PolicyRules,
        served: impl FnOnce() -> Vec<ServedModel>,
    ) -> Result<(), UnknownPolicy> {
        let mut rules = self.rules.lock();
        self.rebuild(&new, &served())?;
        *rules = new;
        Ok(())
    }

    fn rebuild(&self, rules: &PolicyRules, served: &[ServedModel]) -> Result<(), UnknownPolicy> {
        let before = self.table.load();
        let mut by_model = HashMap::new();
        for model in served {
            let name = rules.name_for(model);
            let stays = |held: &&Held| held.policy.name() == name && held.params == rules.params;
            let held = match before.by_model.get(&model.name).filter(stays) {
                Some(held) => held.clone(),
                None => rules.build(name)?,
            };
            by_model.insert(model.name.clone(), held);
        }
        let other = rules.build(&rules.default)?.policy;
        self.table.store(Arc::new(Table {
            by_model,
            other,
            prefix_token_count: rules.prefix_token_count,
        }));
        Ok(())
    }

    /// One policy for all models.
    #[cfg(test)]
    pub fn only(policy: Arc<dyn Policy>) -> Self {
        let params = PolicyParams::default();
        Self {
            rules: Mutex::new(PolicyRules {
                default: "random".to_owned(),
                by_model: BTreeMap::new(),
                params,
                prefix_token_count: usize::MAX,
            }),
            table: ArcSwap::from_pointee(Table {
                by_model: HashMap::new(),
                other: policy,
                prefix_token_count: usize::MAX,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(by_model: &[(&str, &str)]) -> PolicyRules {
        let by_model = by_model.iter();
        PolicyRules {
            default: "least_load".to_owned(),
            by_model: by_model
                .map(|(model, policy)| ((*model).to_owned(), (*policy).to_owned()))
                .collect(),
            params: PolicyParams::default(),
            prefix_token_count: 7,
        }
    }

    fn served(models: &[(&str, Option<&str>)]) -> Vec<ServedModel> {
        let models = models.iter();
        models
            .map(|(name, label)| ServedModel {
                name: (*name).to_owned(),
                label: label.map(str::to_owned),
            })
            .collect()
    }

    #[test]
    fn the_option_goes_before_the_label_and_both_before_the_default() {
        let policies = Policies::new(rules(&[("a", "manual")])).unwrap();
        let models = [("a", Some("random")), ("b", Some("random")), ("c", None)];
        policies.follow(|| served(&models)).unwrap();
        let names = ["a", "b", "c", "unknown"].map(|model| policies.of(model).name());
        assert_eq!(names, ["manual", "random", "least_load", "least_load"]);
        assert!(
            policies
                .follow(|| served(&[("a", None), ("b", Some("best"))]))
                .is_err()
        );
        assert_eq!(policies.of("b").name(), "random");
    }

    #[test]
    fn a_policy_stays_until_its_name_or_its_parameters_change_or_its_model_goes() {
        let policies = Policies::new(rules(&[])).unwrap();
        let both = || served(&[("a", None), ("b", None)]);
        policies.follow(both).unwrap();
        let [a, b] = ["a", "b"].map(|model| policies.of(model));
        assert!(!Arc::ptr_eq(&a, &b));
        policies.change(rules(&[("b", "manual")]), both).unwrap();
        assert!(Arc::ptr_eq(&a, &policies.of("a")));
        assert_eq!(policies.of("b").name(), "manual");
        let mut other = rules(&[]);
        other.params.max_idle *= 2;
        other.prefix_token_count = 8;
        policies.change(other, both).unwrap();
        assert!(!Arc::ptr_eq(&a, &policies.of("a")));
        assert_eq!(policies.prefix_token_count(), 8);
        let before = policies.of("b");
        policies.follow(|| served(&[("a", None)])).unwrap();
        policies.follow(both).unwrap();
        assert!(!Arc::ptr_eq(&before, &policies.of("b")));
    }
}
