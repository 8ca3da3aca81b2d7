//! Who chooses among the workers: a policy of the product, or one that only a simulation has.

mod oracle;
mod upstream;

use std::sync::Arc;

use smg_kv_index::PagedPrompt;
use smg_routing::{Policy, PolicyParams, build_policy};

pub(crate) use oracle::Oracle;
pub(crate) use upstream::{PAGE_TOKENS as UPSTREAM_PAGE_TOKENS, UpstreamCacheAware};

use crate::engine::Foreseen;
use crate::error::SimulateError;
use crate::params::Params;

/// Knows every cache and every queue at the moment of the choice.
pub const ORACLE: &str = "oracle";

/// The cache-aware policy of the published gateway, from its description: a tree of what each worker was sent.
pub const UPSTREAM_CACHE_AWARE: &str = "upstream_cache_aware";

/// One per gateway. The policies beside the product's see more of a request than [`Policy`] shows, so they are shown it
/// before the choice; workers, loads and the choice itself are the product's in every case.
pub(crate) enum Chooser {
    Product(Box<dyn Policy>),
    Oracle(Oracle),
    Upstream(UpstreamCacheAware),
}

impl Chooser {
    pub fn new(name: &str, num_workers: usize) -> Result<Self, SimulateError> {
        match name {
            ORACLE => Ok(Self::Oracle(Oracle::default())),
            UPSTREAM_CACHE_AWARE => Ok(Self::Upstream(UpstreamCacheAware::new(num_workers))),
            _ => build_policy(name, PolicyParams::default())
                .map(Self::Product)
                .map_err(|_| SimulateError::UnknownPolicy {
                    given: name.to_owned(),
                    known: Params::policy_names().collect::<Vec<_>>().join(", "),
                }),
        }
    }

    /// Whether the choice is made by what the indexes say.
    pub fn asks_indexes(&self) -> bool {
        matches!(self, Self::Product(_))
    }

    pub fn policy(&self) -> &dyn Policy {
        match self {
            Self::Product(policy) => policy.as_ref(),
            Self::Oracle(oracle) => oracle,
            Self::Upstream(upstream) => upstream,
        }
    }

    /// The prompt of the next choice, in pages of [`UPSTREAM_PAGE_TOKENS`].
    pub fn show(&self, prompt: impl FnOnce() -> Arc<PagedPrompt>, foreseen: impl FnOnce() -> Vec<Foreseen>) {
        match self {
            Self::Product(_) => {}
            Self::Oracle(oracle) => oracle.show(foreseen()),
            Self::Upstream(upstream) => upstream.show(prompt()),
        }
    }
}
