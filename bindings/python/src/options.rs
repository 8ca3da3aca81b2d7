//! The gateway's options as Python values.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::Value;
use smg::config::{self, GatewayConfig, Policy};

use crate::errors::Outcome;
use crate::json;

/// How a worker is chosen; `str()` gives the flag's value. Each policy is an attribute of the class.
#[pyclass(eq, hash, frozen, module = "sglang_router.sglang_router_rs")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PolicyType(Policy);

#[pymethods]
impl PolicyType {
    /// The policy with the flag's value `name`.
    #[new]
    fn new(name: &str) -> PyResult<Self> {
        let known = Policy::all();
        let found = known.iter().find(|policy| policy.name() == name);
        found.map(|policy| Self(*policy)).ok_or_else(|| {
            let names: Vec<String> = known.iter().map(|policy| policy.name()).collect();
            let message = format!("unknown policy '{name}'; choose one of {}", names.join(", "));
            PyValueError::new_err(message)
        })
    }

    fn __str__(&self) -> String {
        self.0.name()
    }

    fn __repr__(&self) -> String {
        format!("PolicyType.{:?}", self.0)
    }
}

/// Gives the class its attributes, such as `PolicyType.CacheAware`.
pub fn add_policies(py: Python<'_>) -> PyResult<()> {
    let class = py.get_type::<PolicyType>();
    for policy in Policy::all() {
        class.setattr(format!("{policy:?}"), Py::new(py, PolicyType(*policy))?)?;
    }
    Ok(())
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
