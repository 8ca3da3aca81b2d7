//! Options that say what tenants may use, and who goes first.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::options::whole;
use crate::tenants::{TenantFile, TenantKey, TenantPolicy};

/// The most requests or tokens that a limit may allow.
const MOST: u64 = 1_000_000_000_000;

/// How urgent a request may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriorityClass {
    System,
    Interactive,
    Default,
    Bulk,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Tenants and limits")]
pub struct LimitOptions {
    /// Generations of all clients that may start in a second; after a pause --max-concurrent-requests of them may start at once
    #[arg(long, value_parser = whole::<u64>(1, 1_000_000), value_name = "REQUESTS")]
    pub rate_limit_tokens_per_second: Option<u64>,
    /// Generations of one tenant in a minute; 0 = no limit
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>(0, MOST), value_name = "REQUESTS")]
    pub tenant_requests_per_minute: u64,
    /// Tokens of one tenant in a minute, prompts and answers; 0 = no limit
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>(0, MOST), value_name = "TOKENS")]
    pub tenant_tokens_per_minute: u64,
    /// Generations of one tenant that run at once; 0 = no limit
    #[arg(long, default_value_t = 0, value_parser = whole::<u64>(0, MOST), value_name = "REQUESTS")]
    pub tenant_max_concurrent_requests: u64,
    /// File (YAML, TOML or JSON) with limits, weights and classes of single tenants
    #[arg(long, value_parser = TenantFile::read, value_name = "FILE")]
    pub tenant_rate_limit_config: Option<TenantFile>,
    /// Believe the header that names a request's tenant; only behind a proxy that sets it
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub trust_tenant_header: bool,
    /// The name of that header
    #[arg(long, default_value = "x-smg-tenant-id", value_name = "HEADER")]
    pub tenant_header_name: String,
    /// Let more urgent requests go first: by the header x-smg-priority, else by the number `priority` in the body
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub priority_scheduler_enabled: bool,
    /// The most urgent class that a tenant gets, whatever it asks for
    #[arg(long, value_enum, default_value_t = PriorityClass::Default)]
    pub priority_scheduler_default_max_class: PriorityClass,
}

/// What one tenant may use; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TenantLimits {
    pub requests_per_minute: Option<u64>,
    pub tokens_per_minute: Option<u64>,
    pub max_concurrent_requests: Option<usize>,
    /// Its share where several wait, in relation to others' weights.
    pub weight: u32,
    pub max_class: PriorityClass,
}

impl PriorityClass {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }
}

impl LimitOptions {
    /// Of tenants that have none of their own.
    pub fn default_limits(&self) -> TenantLimits {
        let file = self.tenant_rate_limit_config.as_ref();
        self.limits_of(file.map(|file| file.default_policy).unwrap_or_default())
    }

    /// Of the tenants that the file names.
    pub fn limits_of_tenants(&self) -> Vec<(TenantKey, TenantLimits)> {
        let Some(file) = &self.tenant_rate_limit_config else {
            return Vec::new();
        };
        let tenants = file.tenants.iter();
        let limits = |policy: &TenantPolicy| self.limits_of(policy.or(file.default_policy));
        tenants
            .map(|(key, policy)| (key.clone(), limits(policy)))
            .collect()
    }

    /// What a policy leaves out is as the flags say.
    fn limits_of(&self, policy: TenantPolicy) -> TenantLimits {
        let limit = |own: Option<u64>, flag| Some(own.unwrap_or(flag)).filter(|limit| *limit > 0);
        let at_once = limit(
            policy.max_concurrent_requests,
            self.tenant_max_concurrent_requests,
        );
        TenantLimits {
            requests_per_minute: limit(policy.requests_per_minute, self.tenant_requests_per_minute),
            tokens_per_minute: limit(policy.tokens_per_minute, self.tenant_tokens_per_minute),
            max_concurrent_requests: at_once.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX)),
            weight: policy.weight.unwrap_or(1),
            max_class: policy
                .max_class
                .unwrap_or(self.priority_scheduler_default_max_class),
        }
    }
}
