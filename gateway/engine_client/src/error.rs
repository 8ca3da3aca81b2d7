//! Everything that can go wrong between the gateway and a worker.

use std::error::Error as _;
use std::time::Duration;

use tonic::{Code, Status};

use crate::address::Address;

/// A failed call of a worker. Every text names the worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EngineError {
    #[error(
        "worker address {given:?} is not usable: {reason}; allowed are grpc://host:port and unix:///path"
    )]
    InvalidAddress { given: String, reason: String },

    /// No connection; the worker has seen nothing of the call.
    #[error("cannot connect to worker {address}: {message}")]
    Connect { address: Address, message: String },

    /// The connection broke during the call.
    #[error("lost the connection to worker {address} during {operation}: {message}")]
    Disconnected {
        address: Address,
        operation: &'static str,
        message: String,
    },

    /// The worker ended the call with an error. `code` is the gRPC name of `class`'s origin.
    #[error("worker {address} refused {operation} with {code}: {message}")]
    Status {
        address: Address,
        operation: &'static str,
        class: StatusClass,
        code: &'static str,
        message: String,
    },

    /// The caller's time is up; the call was cancelled.
    #[error("worker {address} did not finish {operation} within {} s", limit.as_secs_f64())]
    Deadline {
        address: Address,
        operation: &'static str,
        limit: Duration,
    },

    /// The worker answered something that the protocol does not allow.
    #[error("worker {address} broke the protocol in {operation}: {message}")]
    Protocol {
        address: Address,
        operation: &'static str,
        message: String,
    },

    /// Gateway and worker speak different versions of `sglang.engine.v1`.
    #[error(
        "worker {address} speaks version {theirs} of sglang.engine.v1 and this gateway version {ours}; \
         install matching releases of both"
    )]
    ProtocolVersion {
        address: Address,
        ours: u32,
        theirs: u32,
    },
}

/// What kind of failure an error is, independent of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StatusClass {
    /// The request is wrong and stays wrong on every worker.
    InvalidArgument,
    Unauthenticated,
    PermissionDenied,
    NotFound,
    /// The request collides with another one (a live request with the same id, for instance).
    Conflict,
    /// The worker is full.
    ResourceExhausted,
    /// The worker ended the call without being asked to.
    Cancelled,
    Internal,
    Unimplemented,
    /// The worker cannot be reached, is loading or is draining.
    Unavailable,
    Deadline,
}

impl EngineError {
    pub fn status_class(&self) -> StatusClass {
        match self {
            Self::InvalidAddress { .. } => StatusClass::InvalidArgument,
            Self::Connect { .. } | Self::Disconnected { .. } => StatusClass::Unavailable,
            Self::Status { class, .. } => *class,
            Self::Deadline { .. } => StatusClass::Deadline,
            Self::Protocol { .. } | Self::ProtocolVersion { .. } => StatusClass::Internal,
        }
    }

    /// Whether the same request may succeed on another worker. True for lost, full and stopping workers and
    /// for failures that a worker cannot explain (UNKNOWN, DATA_LOSS); false where the request itself is at
    /// fault or its time is up, and for INTERNAL, so that a request that breaks engines does not visit all.
    pub fn retryable(&self) -> bool {
        match self {
            Self::Connect { .. } | Self::Disconnected { .. } => true,
            Self::Status { class, code, .. } => {
                matches!(
                    class,
                    StatusClass::Unavailable | StatusClass::ResourceExhausted | StatusClass::Cancelled
                ) || matches!(*code, "UNKNOWN" | "DATA_LOSS")
            }
            Self::InvalidAddress { .. }
            | Self::Deadline { .. }
            | Self::Protocol { .. }
            | Self::ProtocolVersion { .. } => false,
        }
    }

    /// The worker's or the transport's own words, without the address.
    pub fn message(&self) -> String {
        match self {
            Self::Connect { message, .. }
            | Self::Disconnected { message, .. }
            | Self::Status { message, .. }
            | Self::Protocol { message, .. } => message.clone(),
            other => other.to_string(),
        }
    }

    /// Whether the worker may still be working on the call: true unless it ended the call itself or was
    /// never reached.
    pub(crate) fn leaves_work_behind(&self) -> bool {
        matches!(
            self,
            Self::Disconnected { .. } | Self::Deadline { .. } | Self::Protocol { .. }
        )
    }
}

/// Names the worker and the call in every error that is built from a gRPC status.
#[derive(Debug, Clone)]
pub(crate) struct CallSite {
    pub address: Address,
    pub operation: &'static str,
    /// The call's deadline, counted from its start.
    pub limit: Option<Duration>,
}

impl CallSite {
    pub fn explain(&self, status: &Status) -> EngineError {
        let (address, operation) = (self.address.clone(), self.operation);
        let causes: Vec<&(dyn std::error::Error + 'static)> =
            std::iter::successors(status.source(), |cause| (*cause).source()).collect();
        if let Some(connect) = causes.iter().find(|cause| cause.is::<tonic::ConnectError>()) {
            return EngineError::Connect {
                address,
                message: connect.to_string(),
            };
        }
        if causes.iter().any(|cause| cause.is::<tonic::TimeoutExpired>()) {
            return self.deadline();
        }
        // A status that the worker sent has no cause; one that the client's transport made up has.
        if let Some(cause) = causes.last() {
            return EngineError::Disconnected {
                address,
                operation,
                message: cause.to_string(),
            };
        }
        let (class, code) = classify(status.code());
        EngineError::Status {
            address,
            operation,
            class,
            code,
            message: status.message().to_owned(),
        }
    }

    pub fn protocol(&self, message: impl Into<String>) -> EngineError {
        EngineError::Protocol {
            address: self.address.clone(),
            operation: self.operation,
            message: message.into(),
        }
    }

    pub fn deadline(&self) -> EngineError {
        EngineError::Deadline {
            address: self.address.clone(),
            operation: self.operation,
            limit: self.limit.unwrap_or_default(),
        }
    }
}

fn classify(code: Code) -> (StatusClass, &'static str) {
    match code {
        Code::InvalidArgument => (StatusClass::InvalidArgument, "INVALID_ARGUMENT"),
        Code::FailedPrecondition => (StatusClass::InvalidArgument, "FAILED_PRECONDITION"),
        Code::OutOfRange => (StatusClass::InvalidArgument, "OUT_OF_RANGE"),
        Code::Unauthenticated => (StatusClass::Unauthenticated, "UNAUTHENTICATED"),
        Code::PermissionDenied => (StatusClass::PermissionDenied, "PERMISSION_DENIED"),
        Code::NotFound => (StatusClass::NotFound, "NOT_FOUND"),
        Code::AlreadyExists => (StatusClass::Conflict, "ALREADY_EXISTS"),
        Code::Aborted => (StatusClass::Conflict, "ABORTED"),
        Code::ResourceExhausted => (StatusClass::ResourceExhausted, "RESOURCE_EXHAUSTED"),
        Code::Cancelled => (StatusClass::Cancelled, "CANCELLED"),
        Code::Internal => (StatusClass::Internal, "INTERNAL"),
        Code::Unknown => (StatusClass::Internal, "UNKNOWN"),
        Code::DataLoss => (StatusClass::Internal, "DATA_LOSS"),
        Code::Ok => (StatusClass::Internal, "OK"),
        Code::Unimplemented => (StatusClass::Unimplemented, "UNIMPLEMENTED"),
        Code::Unavailable => (StatusClass::Unavailable, "UNAVAILABLE"),
        Code::DeadlineExceeded => (StatusClass::Deadline, "DEADLINE_EXCEEDED"),
    }
}
