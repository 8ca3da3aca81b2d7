//! Python values that stand for JSON, by way of Python's own `json`.

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};
use serde::de::DeserializeOwned;

use crate::errors::Outcome;

/// Raises Python's own `TypeError` or `ValueError` for what is no JSON.
pub fn from_python<T: DeserializeOwned>(value: &Bound<'_, PyAny>) -> Outcome<T> {
    let options = PyDict::new(value.py());
    options.set_item("allow_nan", false)?;
    options.set_item("ensure_ascii", false)?;
    let encoded = value
        .py()
        .import("json")?
        .call_method("dumps", (value,), Some(&options))?;
    let encoded = encoded
        .cast::<PyString>()
        .map_err(PyErr::from)?
        .to_string_lossy()
        .into_owned();
    serde_json::from_str(&encoded)
        .map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()).into())
}

pub fn to_python<'py>(py: Python<'py>, value: &serde_json::Value) -> Outcome<Bound<'py, PyAny>> {
    Ok(py.import("json")?.call_method1("loads", (value.to_string(),))?)
}
