//! What policies do to a fleet: requests of a trace, gateways that choose by the product's own policies and indexes, and
//! a model of engines, driven by a clock that jumps from event to event.
//!
//! ```text
//! Trace ─ arrival ─> gateway: Chooser over WorkerSet and index ─> Engine: queue, passes, PageCache
//!                      ^ settle, end ──────────────────────────────┤
//!                      ^ what is cached and how loaded, after the delay
//! ```
//!
//! Nothing here reads a clock, and all chance comes from a seed: the same parameters give the same outcome.

mod cache;
mod chooser;
mod content;
mod engine;
mod error;
mod fleet;
mod outcome;
mod params;
mod report;
mod run;
mod trace;

pub use chooser::{ORACLE, UPSTREAM_CACHE_AWARE};
pub use content::{Content, Segment};
pub use error::SimulateError;
pub use outcome::{Outcome, Percentiles};
pub use params::{EngineParams, Params, Speed};
pub use report::{Report, Row, Times};
pub use run::{Watch, possible_hit_rate, simulate};
pub use trace::{Requests, SyntheticTrace, Trace, TraceFile, TraceParams, TraceRequest, synthetic_names};
