//! The gateway's options: declared once, read from flags, environment and a file, checked, then never changed.
//!
//! The only crate that reads the environment.
//!
//! # Layout
//!
//! - `options`: [`GatewayConfig`], every option with its default, bounds and help.
//! - `models`: those about single models.
//! - `limits`, `tenants`: those about tenants, and the file that holds what differs between them.
//! - `command`: the command line, from arguments to a [`Command`].
//! - `layers`: flag over environment over file over default, and where each value came from.
//! - `file`: the file of `--config`.
//! - `lacking`: options of other gateways that this one knowingly does not have.
//! - `validate`: rules that an option alone cannot express.
//! - `reload`: what can change while the gateway runs.
//! - `show`, `schema`: the options for people and for programs.

mod command;
mod error;
mod file;
mod lacking;
mod layers;
mod limits;
mod models;
mod options;
mod reload;
mod schema;
mod secret;
mod show;
mod simulate;
mod tenants;
#[cfg(test)]
mod tests;
mod validate;

pub use command::{Command, from_map, parse, parse_with};
pub use error::ConfigError;
pub use layers::Origin;
pub use limits::{LimitOptions, PriorityClass, TenantLimits};
pub use models::{ModelAlias, ModelOptions, ModelPolicy};
pub use options::{
    AssignmentMode, AuthOptions, BreakerOptions, GatewayConfig, HealthOptions, LogLevel, LogOptions,
    MetricsOptions, Policy, RequestOptions, RetryOptions, RoutingOptions, ServerOptions, StartupOptions,
    TokenizerOptions, TraceOptions,
};
pub use reload::config_file;
pub use schema::option_schema;
pub use secret::Secret;
pub use simulate::{ReportFormat, SimulateOptions};
pub use tenants::TenantKey;
pub use validate::check_worker_url;
