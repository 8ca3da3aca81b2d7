//! The gateway's client of one engine worker: plain Rust values in, plain Rust values out. This is the only
//! crate of the gateway that sees protobuf or tonic.

mod address;
mod bundle;
mod client;
mod connector;
mod convert;
mod error;
mod event;
mod json;
mod kv_events;
#[cfg(feature = "proto")]
pub mod proto;
#[cfg(not(feature = "proto"))]
mod proto;
mod request;
mod stream;
mod worker;

pub use address::Address;
pub use client::{CONTROL_PROTOCOL_VERSION, EngineClient};
pub use connector::{BoxFuture, BoxedIo, Connector, Io, SystemConnector};
pub use error::{EngineError, StatusClass};
pub use event::{
    CachedTiers, Completion, EngineEvent, Finish, FinishReason, LogprobRows, Matched, StageTimes, TokenChunk,
};
pub use kv_events::{
    KvBatch, KvChange, KvEvents, KvEventsError, KvSnapshotPart, KvStored, KvTier, PushedLoad,
};
pub use request::{Constraint, EmbedSpec, GenerateSpec, Sampling, Session};
pub use stream::GenerateStream;
pub use worker::{
    DisaggregationLoad, Embedding, Health, Load, LoraLoad, MemoryLoad, ModelInfo, QueueLoad, SpeculativeLoad,
};
