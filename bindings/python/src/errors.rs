//! The one map from the gateway's errors to Python exceptions.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::PyValueError;
use smg::{config, text};

create_exception!(
    sglang_router.sglang_router_rs,
    TextError,
    PyValueError,
    "A tokenizer, template or stop cannot be built, or does not accept what it was given."
);

/// What an exported function can fail with.
pub enum Failure {
    Text(String),
    /// An option's name or value.
    Options(String),
    Python(PyErr),
}

pub type Outcome<T> = Result<T, Failure>;

macro_rules! text_errors {
    ($($error:ty),+) => {$(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::Text(error.to_string())
            }
        }
    )+};
}

text_errors!(
    text::TokenizerError,
    text::TemplateError,
    text::DecodeError,
    text::StopError
);

impl From<config::ConfigError> for Failure {
    fn from(error: config::ConfigError) -> Self {
        Self::Options(error.to_string())
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Text(message) => TextError::new_err(message),
            Failure::Options(message) => PyValueError::new_err(message),
            Failure::Python(error) => error,
        }
    }
}
