//! Files with settings: YAML, TOML or JSON by their suffix.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::ConfigError;

/// Reads the keys of the file that an option names, one of which is like `example`; the names are not checked yet.
pub(crate) fn read(flag: &str, path: &Path, example: &str) -> Result<Map<String, Value>, ConfigError> {
    let fail =
        |why: String| ConfigError::new(format!("cannot read the {flag} file {}: {why}", path.display()));
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
        _ => Err(fail(format!("it must hold {example}"))),
    }
}
