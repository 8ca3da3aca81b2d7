//! The gateway as Python classes. It runs on threads of its own; Python keeps the main thread and its signals.

use std::time::Duration;

use parking_lot::Mutex;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use smg::config::GatewayConfig;
use smg::embedded::Embedded;

use crate::errors::{Failure, Outcome};
use crate::options::config_of;

/// How often a waiting call lets Python's signal handlers run.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);
