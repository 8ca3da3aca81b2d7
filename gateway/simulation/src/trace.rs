//! Requests and when they arrive: read from a file in the published format, or made by a seed.

mod file;
mod synthetic;

use std::path::PathBuf;

pub use file::TraceFile;
pub use synthetic::{SyntheticTrace, synthetic_names};

use crate::content::Content;
use crate::error::SimulateError;

/// A request as it reaches the fleet.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceRequest {
    /// Nanoseconds after the start.
    pub arrival: u64,
    pub content: Content,
    /// What the client calls the requests that belong together.
    pub session: Option<String>,
}

/// Requests in the order of their arrival. Each call begins anew, so that every policy sees the same.
#[derive(Clone, Debug)]
pub enum Trace {
    File(TraceFile),
    Synthetic(SyntheticTrace),
}

/// What a trace is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceParams {
    /// A file in the published format, plain or gzipped. Unset: `name` is made.
    pub from: Option<PathBuf>,
    /// One of [`synthetic_names`].
    pub name: String,
    /// Take so many requests; of a file all if unset.
    pub num_requests: Option<usize>,
    /// Requests per second. Unset: as the file says, or as a fleet of this size can take.
    pub rate: Option<f64>,
    pub num_workers: usize,
    pub seed: u64,
}

pub type Requests = Box<dyn Iterator<Item = Result<TraceRequest, SimulateError>>>;

impl Trace {
    /// A file is read to its end once, so that a wrong line is told before anything runs.
    pub fn new(params: &TraceParams) -> Result<Self, SimulateError> {
        if let Some(rate) = params.rate
            && !(rate.is_finite() && rate > 0.0)
        {
            return Err(SimulateError::OutOfRange {
                option: "--rate",
                given: rate.to_string(),
                allowed: "requests per second above 0".to_owned(),
            });
        }
        if params.num_requests == Some(0) {
            return Err(SimulateError::OutOfRange {
                option: "--requests",
                given: "0".to_owned(),
                allowed: "at least 1".to_owned(),
            });
        }
        match &params.from {
            Some(path) => TraceFile::new(path, params.num_requests, params.rate).map(Self::File),
            None => SyntheticTrace::new(params).map(Self::Synthetic),
        }
    }

    pub fn requests(&self) -> Result<Requests, SimulateError> {
        match self {
            Self::File(file) => file.requests(),
            Self::Synthetic(synthetic) => Ok(Box::new(synthetic.requests().map(Ok))),
        }
    }

    pub fn num_requests(&self) -> usize {
        match self {
            Self::File(file) => file.num_requests(),
            Self::Synthetic(synthetic) => synthetic.num_requests(),
        }
    }

    pub fn name(&self) -> String {
        match self {
            Self::File(file) => file.name(),
            Self::Synthetic(synthetic) => synthetic.name().to_owned(),
        }
    }
}

pub(crate) const NANOS: f64 = 1e9;
