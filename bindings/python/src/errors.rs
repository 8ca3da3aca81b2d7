//! The one map from the gateway's errors to Python exceptions.

use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use smg::embedded::EmbeddedError;
use smg::{ServeError, config, text};

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
    /// The operating system refuses a port or a thread.
    System(std::io::Error, String),
    Gateway(String),
    /// A call that does not fit what was called before.
    State(&'static str),
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

impl From<EmbeddedError> for Failure {
    fn from(error: EmbeddedError) -> Self {
        let message = error.to_string();
        match error {
            EmbeddedError::Serve(ServeError::Bind { source, .. }) | EmbeddedError::Threads(source) => {
                Self::System(source, message)
            }
            EmbeddedError::Serve(ServeError::Workers(_) | ServeError::Policy(_)) => Self::Options(message),
            EmbeddedError::Serve(_) | EmbeddedError::Panicked => Self::Gateway(message),
        }
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
            // With the number, Python makes it the right subclass of OSError.
            Failure::System(error, message) => match error.raw_os_error() {
                Some(number) => PyOSError::new_err((number, message)),
                None => PyOSError::new_err(message),
            },
            Failure::Gateway(message) => PyRuntimeError::new_err(message),
            Failure::State(message) => PyRuntimeError::new_err(message),
            Failure::Python(error) => error,
        }
    }
}
