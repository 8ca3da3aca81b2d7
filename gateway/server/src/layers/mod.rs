//! What every request passes before its endpoint, one layer per file.

pub mod admission;
pub mod auth;
pub mod body;
pub mod panic;
pub mod request_id;
mod sending;
pub mod trace;
