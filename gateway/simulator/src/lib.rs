//! A scripted engine worker: a test double for gateways and for the client of an engine. It speaks both
//! services of a worker, emits the tokens that a script tells it to, and records what it was asked. It holds no
//! model and no text; nothing here is meant to serve users.
//!
//! All waiting is tokio time, so paused clocks and simulated networks work. `serve` takes any stream of
//! connections: TCP, Unix sockets, the in-memory network of this crate, or a simulation's.

mod answer;
mod builder;
mod bundle;
mod connection;
mod engine;
mod kv_cache;
mod link;
mod logprobs;
mod memory_network;
mod record;
mod scheduler;
mod script;

pub use builder::{SimulatedEngineBuilder, default_card};
pub use bundle::zip_archive;
pub use engine::SimulatedEngine;
pub use memory_network::{MemoryListener, MemoryNetwork};
pub use record::{Counts, Record, RecordedRequest};
pub use script::{HealthScript, Outcome, Script, Style, Tokens};
/// The generated wire types, for scripts and assertions.
pub use smg_engine_client::proto;
/// The codes that scripted failures end with.
pub use tonic::Code;
