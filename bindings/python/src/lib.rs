//! `sglang_router.sglang_router_rs`: the gateway and its text library for Python. Newtypes and one error map.

mod errors;
mod gateway;
mod json;
mod options;
mod text;

use pyo3::prelude::*;

/// The version of this wheel and of the gateway in it.
#[pyfunction]
fn get_version_string() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// The same with what it was built for.
#[pyfunction]
fn get_verbose_version_string() -> String {
    let profile = if cfg!(debug_assertions) {
        "debug"
    } else {
        "release"
    };
    let (arch, os) = (std::env::consts::ARCH, std::env::consts::OS);
    format!(
        "smg {} ({arch}-{os}, {profile} build, in sglang_router)",
        get_version_string()
    )
}

#[pymodule]
mod sglang_router_rs {
    #[pymodule_export]
    use super::errors::TextError;
    #[pymodule_export]
    use super::gateway::{FrontDoor, Router, run};
    #[pymodule_export]
    use super::options::{PolicyType, option_schema};
    #[pymodule_export]
    use super::text::{IncrementalDecoder, StopMatcher, StopProgress, Tokenizer};
    #[pymodule_export]
    use super::{get_verbose_version_string, get_version_string};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::options::add_policies(module.py())
    }
}
