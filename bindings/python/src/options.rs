//! The gateway's options as Python values.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use smg::config::{self, GatewayConfig, Policy};

use crate::errors::Outcome;
use crate::json;

/// How a worker is chosen; `str()` gives the flag's value.
#[pyclass(eq, hash, frozen, module = "sglang_router.sglang_router_rs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyType {
    Random,
    RoundRobin,
    CacheAware,
    PowerOfTwo,
}

#[pymethods]
impl PolicyType {
    fn __str__(&self) -> &'static str {
        match self {
            Self::Random => Policy::Random,
            Self::RoundRobin => Policy::RoundRobin,
            Self::CacheAware => Policy::CacheAware,
            Self::PowerOfTwo => Policy::PowerOfTwo,
        }
        .as_str()
    }
}

/// Every option of the gateway: a list with one dict per option.
#[pyfunction]
pub fn option_schema(py: Python<'_>) -> Outcome<Bound<'_, PyAny>> {
    json::to_python(py, &config::option_schema())
}

/// A checked configuration out of keywords; `extra` wins over them.
pub fn config_of(options: &Bound<'_, PyDict>, extra: &[(&str, Value)]) -> Outcome<GatewayConfig> {
    let plain = options.copy()?;
    for (name, value) in options {
        if let Ok(policy) = value.cast::<PolicyType>() {
            plain.set_item(name, policy.get().__str__())?;
        }
    }
    let mut map: serde_json::Map<String, Value> = json::from_python(&plain)?;
    map.extend(
        extra
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone())),
    );
    Ok(config::from_map(&map)?)
}
