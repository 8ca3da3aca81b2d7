//! The gateway: one HTTP API in front of engine workers that speak gRPC.
//!
//! Read `app` for the routes and layers, `pipeline` for the way of a generation, `workers` for how the
//! gateway learns of its workers.

mod admin;
mod app;
mod collector;
mod connections;
mod context;
pub mod embedded;
mod endpoints;
mod error;
mod exposition;
mod extract;
mod launch;
mod layers;
mod live;
mod pipeline;
mod reload;
mod retry;
mod serve;
mod simulate;
mod spans;
mod telemetry;
mod transport;
mod workers;

/// For the Python wheel, which composes nothing and needs these two leaves beside the gateway.
pub use smg_config as config;
pub use smg_tokenizer as text;

pub use launch::main_from_args;
pub use serve::{Environment, Listening, ServeError, Shutdown, serve};
pub use transport::{Binder, Io, Listener, SystemBinder};
