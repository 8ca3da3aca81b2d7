use std::path::PathBuf;

/// Why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// Worded like the gateway's own answer to an unknown name, with the names that only a simulation has.
    #[error("--policy: unknown policy {given:?}; choose one of {known}")]
    UnknownPolicy { given: String, known: String },
    #[error("--policy: {given} is named twice; name each policy once")]
    PolicyTwice { given: String },
    #[error("--trace: unknown trace {given:?}; choose one of {known}")]
    UnknownTrace { given: String, known: String },
    #[error("{option}: {given} is not allowed; give {allowed}")]
    OutOfRange {
        option: &'static str,
        given: String,
        allowed: String,
    },
    #[error("--from: {} cannot be read: {source}", path.display())]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("--from: {} line {line}: {message}", path.display())]
    Line {
        path: PathBuf,
        line: usize,
        message: String,
    },
    #[error("--from: {} has no requests; each line is a JSON object with {fields}", path.display())]
    Empty { path: PathBuf, fields: &'static str },
}
