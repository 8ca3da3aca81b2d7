//! Why the options cannot be used.

/// One sentence for the user; names the option, what was given and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// The exit status of a program that was started with such options.
    pub const EXIT_CODE: i32 = 2;
}
