//! `smg config show`: every option, its value, and where it came from.

use indexmap::IndexMap;
use serde_json::Value;

use crate::layers::Origin;
use crate::options::GatewayConfig;

/// Option id → who set it, in the order of declaration.
pub(crate) type Origins = IndexMap<String, Origin>;

/// One line per option: name, value as JSON, origin. Secrets are masked.
pub(crate) fn table(config: &GatewayConfig, origins: &Origins) -> String {
    // A config is made of texts and numbers, which always serialize.
    let values = serde_json::to_value(config).unwrap_or(Value::Null);
    let rows: Vec<(&str, String, String)> = origins
        .iter()
        .map(|(id, origin)| (id.as_str(), values[id.as_str()].to_string(), origin.to_string()))
        .collect();
    let name_width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
    let value_width = rows
        .iter()
        .map(|row| row.1.len())
        .filter(|len| *len <= 40)
        .max()
        .unwrap_or(0);
    rows.iter()
        .map(|(name, value, origin)| format!("{name:name_width$}  {value:value_width$}  {origin}\n"))
        .collect()
}
