//! The gateway as Python classes. It runs on threads of its own; Python keeps the main thread and its signals.

use std::sync::OnceLock;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::json;
use smg::Shutdown;
use smg::config::GatewayConfig;
use smg::embedded::{Embedded, EmbeddedError};

use crate::errors::{Failure, Outcome};
use crate::options::config_of;

/// How often a waiting call lets Python's signal handlers run.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// A gateway that serves while `start` is called. Options are the flags' names, with underscores.
#[pyclass(frozen, module = "sglang_router.sglang_router_rs")]
pub struct Router {
    config: GatewayConfig,
    shutdown: Shutdown,
}

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (**options))]
    fn new(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> Outcome<Self> {
        let none = PyDict::new(py);
        Ok(Self {
            config: config_of(options.unwrap_or(&none), &[])?,
            shutdown: Shutdown::default(),
        })
    }

    /// Serves until `stop` is called, or until a Python signal handler raises: then drains and raises that.
    fn start(&self, py: Python<'_>) -> Outcome<()> {
        let gateway = py.detach(|| Embedded::start(self.config.clone(), self.shutdown.clone()))?;
        wait(py, &gateway)
    }

    /// Asks the gateway to drain and end; it does not start again.
    fn stop(&self) {
        self.shutdown.drain.cancel();
    }
}

/// The gateway in front of the one worker that listens at a Unix socket.
#[pyclass(frozen, module = "sglang_router.sglang_router_rs")]
pub struct FrontDoor {
    config: GatewayConfig,
    shutdown: Shutdown,
    gateway: OnceLock<Embedded>,
}

#[pymethods]
impl FrontDoor {
    #[new]
    fn new(options: &Bound<'_, PyDict>, worker_socket: &str) -> Outcome<Self> {
        let worker = json!([format!("unix://{worker_socket}")]);
        Ok(Self {
            config: config_of(options, &[("worker_urls", worker)])?,
            shutdown: Shutdown::default(),
            gateway: OnceLock::new(),
        })
    }

    /// Starts to serve and returns once the port is open.
    fn start(&self, py: Python<'_>) -> Outcome<()> {
        let started = || Failure::State("the front door was started already");
        if self.gateway.get().is_some() {
            return Err(started());
        }
        let gateway = py.detach(|| Embedded::start(self.config.clone(), self.shutdown.clone()))?;
        self.gateway.set(gateway).map_err(|_| started())
    }

    /// Asks it to drain and end.
    fn stop(&self) {
        self.shutdown.drain.cancel();
    }

    /// Waits until it has ended, or until a Python signal handler raises.
    fn wait(&self, py: Python<'_>) -> Outcome<()> {
        let gateway = self
            .gateway
            .get()
            .ok_or(Failure::State("the front door was not started"))?;
        wait(py, gateway)
    }
}

/// The command line of the binary `smg`, with the arguments after its name; returns the exit status.
#[pyfunction]
pub fn run(py: Python<'_>, argv: Vec<String>) -> i32 {
    py.detach(|| smg::main_from_args(argv))
}

fn wait(py: Python<'_>, gateway: &Embedded) -> Outcome<()> {
    let mut interrupt: Option<PyErr> = None;
    loop {
        if let Some(outcome) = py.detach(|| gateway.wait(SIGNAL_INTERVAL)) {
            return interrupt.map_or_else(
                || outcome.map_err(EmbeddedError::into),
                |raised| Err(raised.into()),
            );
        }
        if let Err(raised) = py.check_signals() {
            if interrupt.is_some() {
                // The second one does not wait for the drain.
                return Err(raised.into());
            }
            gateway.stop();
            interrupt = Some(raised);
        }
    }
}
