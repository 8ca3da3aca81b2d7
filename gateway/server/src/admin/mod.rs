//! Routes for operators: state, health, metrics, and operations on running workers.

pub mod abort;
pub mod adapters;
pub mod cache;
pub mod explain;
pub mod health;
pub mod loads;
pub mod membership;
pub mod metrics;
pub mod operations;
pub mod workers;
