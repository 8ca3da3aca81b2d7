//! The generated wire types. Gateway code never names them: `convert` is their only reader here, and the
//! feature `proto` shows them to test doubles that play the worker's side.
#![allow(
    missing_docs,
    dead_code,
    unused_qualifications,
    clippy::all,
    clippy::allow_attributes_without_reason,
    clippy::disallowed_methods,
    clippy::too_many_lines,
    reason = "generated code"
)]

#[cfg(feature = "proto")]
pub use crate::json::to_struct as json_to_struct;
#[cfg(feature = "proto")]
pub use prost_types::Timestamp;
pub use sglang::engine::v1 as engine;
pub use sglang::grpc::scheduler;
pub use smg::grpc::common;

// Generated code refers to other packages by relative paths, so the modules nest as the packages do.
mod smg {
    pub mod grpc {
        pub mod common {
            tonic::include_proto!("smg.grpc.common");
        }
    }
}

mod sglang {
    pub mod grpc {
        pub mod scheduler {
            tonic::include_proto!("sglang.grpc.scheduler");
        }
    }
    pub mod engine {
        pub mod v1 {
            tonic::include_proto!("sglang.engine.v1");
        }
    }
}
