//! What a gateway that runs can take over from a changed configuration.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::Value;

use crate::command::{config_path, process_environment};
use crate::layers::variable;
use crate::options::GatewayConfig;

/// Options that are taken over.
const CHANGEABLE: &[&str] = &[
    "worker_urls",
    "policy",
    "cache_threshold",
    "balance_abs_threshold",
    "balance_rel_threshold",
    "prefix_token_count",
    "prefix_hash_load_factor",
    "bucket_adjust_interval_secs",
    "assignment_mode",
    "max_idle_secs",
    "least_load_kv_pressure_weight",
    "least_load_default_throughput",
    "model_policies",
    "model_aliases",
];

/// The file that these arguments, or the environment, name as the gateway's configuration.
pub fn config_file<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> Option<PathBuf> {
    let args = args
        .into_iter()
        .map(|arg| arg.into().to_string_lossy().into_owned());
    let named = config_path(&args.collect::<Vec<_>>());
    let named = named.or_else(|| variable("SMG_CONFIG", &process_environment).ok().flatten());
    named.map(PathBuf::from)
}

impl GatewayConfig {
    /// Names of the options that differ in `other` and count from a start on only.
    pub fn fixed_changes(&self, other: &Self) -> Vec<String> {
        // A config is made of texts and numbers, which always serialize.
        let values = |config: &Self| serde_json::to_value(config).unwrap_or(Value::Null);
        let (before, after) = (values(self), values(other));
        let all = before.as_object().into_iter().flat_map(|all| all.keys());
        let mut changed: BTreeSet<&str> = all
            .map(String::as_str)
            .filter(|name| !CHANGEABLE.contains(name) && before[*name] != after[*name])
            .collect();
        // These are written without what is in them.
        let hidden = [
            ("api_key", self.auth.api_key != other.auth.api_key),
            (
                "admin_api_key",
                self.auth.admin_api_key != other.auth.admin_api_key,
            ),
            (
                "tenant_rate_limit_config",
                self.limits.tenant_rate_limit_config != other.limits.tenant_rate_limit_config,
            ),
        ];
        changed.extend(
            hidden
                .iter()
                .filter(|(_, is_other)| *is_other)
                .map(|(name, _)| *name),
        );
        changed.into_iter().map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(map: &Value) -> GatewayConfig {
        crate::command::from_map_with(map.as_object().unwrap(), &|_| None).unwrap()
    }

    #[test]
    fn what_counts_from_a_start_on_only_is_named() {
        let before = config(&json!({"api_key": "one", "port": 1}));
        let after = json!({"api_key": "two", "port": 2, "policy": "random", "worker_urls": ["grpc://a:1"]});
        assert_eq!(before.fixed_changes(&config(&after)), ["api_key", "port"]);
        assert!(before.fixed_changes(&before).is_empty());
    }

    #[test]
    fn what_can_change_are_options() {
        let all = serde_json::to_value(config(&json!({}))).unwrap();
        for name in CHANGEABLE {
            assert!(all.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn the_file_is_that_of_the_last_flag() {
        let named = |args: &[&str]| config_file(args.iter().map(|arg| (*arg).to_owned()));
        assert_eq!(
            named(&["--config", "a.yaml", "--config=b.yaml"]),
            Some("b.yaml".into())
        );
        assert_eq!(named(&["launch", "--config", "a.yaml"]), Some("a.yaml".into()));
    }
}
