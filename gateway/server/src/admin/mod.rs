//! Routes for operators: state, health, metrics, and the few operations on running workers.

pub mod abort;
pub mod cache;
pub mod health;
pub mod loads;
pub mod metrics;
pub mod workers;
