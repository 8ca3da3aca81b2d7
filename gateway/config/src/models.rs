//! Options about single models: the policy of each, and other names for it.

use std::collections::HashSet;
use std::fmt;

use clap::{Args, ValueEnum};
use serde::{Serialize, Serializer};

use crate::error::ConfigError;
use crate::layers::clip;
use crate::options::Policy;

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Models")]
pub struct ModelOptions {
    /// Models whose workers are chosen by another policy than that of --policy, each as MODEL=POLICY
    #[arg(long, num_args = 1.., value_delimiter = ',', value_parser = model_policy, value_name = "MODEL=POLICY")]
    pub model_policies: Vec<ModelPolicy>,
    /// Other names under which models can be asked for, each as NAME=MODEL
    #[arg(long, num_args = 1.., value_delimiter = ',', value_parser = model_alias, value_name = "NAME=MODEL")]
    pub model_aliases: Vec<ModelAlias>,
}

/// How the workers of one model are chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelPolicy {
    pub model: String,
    pub policy: Policy,
}

/// Another name for a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelAlias {
    pub name: String,
    pub model: String,
}

impl ModelOptions {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check_once(
            "--model-policies",
            self.model_policies.iter().map(|given| given.model.as_str()),
        )?;
        let names = || self.model_aliases.iter().map(|alias| alias.name.as_str());
        check_once("--model-aliases", names())?;
        let names: HashSet<&str> = names().collect();
        match self
            .model_aliases
            .iter()
            .find(|alias| names.contains(alias.model.as_str()))
        {
            Some(alias) => Err(ConfigError::new(format!(
                "--model-aliases: `{}` stands for `{}`, which is an alias itself; name the model",
                clip(&alias.name),
                clip(&alias.model)
            ))),
            None => Ok(()),
        }
    }
}

fn check_once<'a>(flag: &str, names: impl Iterator<Item = &'a str>) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(ConfigError::new(format!(
                "{flag}: `{}` is given twice; leave one out",
                clip(name)
            )));
        }
    }
    Ok(())
}

fn model_policy(text: &str) -> Result<ModelPolicy, String> {
    let (model, policy) = pair(text, "MODEL=POLICY")?;
    let policy = Policy::from_str(policy, false).map_err(|_| {
        let names: Vec<String> = Policy::all().iter().map(|policy| policy.name()).collect();
        format!("the policy must be one of {}", names.join(", "))
    })?;
    Ok(ModelPolicy {
        model: model.to_owned(),
        policy,
    })
}

fn model_alias(text: &str) -> Result<ModelAlias, String> {
    let (name, model) = pair(text, "NAME=MODEL")?;
    Ok(ModelAlias {
        name: name.to_owned(),
        model: model.to_owned(),
    })
}

fn pair<'a>(text: &'a str, form: &str) -> Result<(&'a str, &'a str), String> {
    let parts = text
        .split_once('=')
        .map(|(left, right)| (left.trim(), right.trim()));
    parts
        .filter(|(left, right)| !left.is_empty() && !right.is_empty() && !right.contains('='))
        .ok_or_else(|| format!("it must be {form}"))
}

// === impl ModelPolicy ===

impl fmt::Display for ModelPolicy {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}={}", self.model, self.policy.name())
    }
}

impl Serialize for ModelPolicy {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

// === impl ModelAlias ===

impl fmt::Display for ModelAlias {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}={}", self.name, self.model)
    }
}

impl Serialize for ModelAlias {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn options(map: &Value) -> Result<ModelOptions, String> {
        let config = crate::command::from_map_with(map.as_object().unwrap(), &|_| None);
        config
            .map(|config| config.models)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_model_has_one_policy_and_an_alias_one_model() {
        let given = json!({
            "model_policies": ["a/b=round_robin", "c=manual"],
            "model_aliases": ["small=a/b", "smaller = a/b"],
        });
        let models = options(&given).unwrap();
        let shown = serde_json::to_value(&models).unwrap();
        assert_eq!(
            shown,
            json!({"model_policies": ["a/b=round_robin", "c=manual"], "model_aliases": ["small=a/b", "smaller=a/b"]})
        );
        assert_eq!(models.model_policies[1].policy, Policy::Manual);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (given, said) in [
            (json!({"model_policies": ["a"]}), "it must be MODEL=POLICY"),
            (
                json!({"model_policies": ["a=best"]}),
                "the policy must be one of random, round_robin",
            ),
            (
                json!({"model_policies": ["a=random", "a=manual"]}),
                "`a` is given twice",
            ),
            (json!({"model_aliases": ["=a"]}), "it must be NAME=MODEL"),
            (json!({"model_aliases": ["x=a", "x=b"]}), "`x` is given twice"),
            (
                json!({"model_aliases": ["x=y", "y=a"]}),
                "`y`, which is an alias itself",
            ),
        ] {
            let error = options(&given).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
    }
}
