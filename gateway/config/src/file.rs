//! The file of `--config`: YAML, TOML or JSON by its suffix, one key per option.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::ConfigError;

/// Reads the keys of a file; the names are not checked yet.
pub(crate) fn read(path: &Path) -> Result<Map<String, Value>, ConfigError> {
    let fail =
        |why: String| ConfigError::new(format!("cannot read the --config file {}: {why}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|e| fail(e.to_string()))?;
    let suffix = path.extension().and_then(|s| s.to_str()).unwrap_or_default();
    let value: Value = match suffix {
        "yaml" | "yml" => serde_yaml_ng::from_str(&text).map_err(|e| fail(e.to_string()))?,
        "toml" => toml::from_str(&text).map_err(|e| fail(e.message().to_owned()))?,
        "json" => serde_json::from_str(&text).map_err(|e| fail(e.to_string()))?,
        other => {
            return Err(fail(format!(
                "its suffix is `{other}`; use .yaml, .yml, .toml or .json"
            )));
        }
    };
    match value {
        Value::Object(map) => Ok(map),
        Value::Null => Ok(Map::new()),
        _ => Err(fail(
            "it must hold one key per option, such as `port: 30000`".to_owned(),
        )),
    }
}
