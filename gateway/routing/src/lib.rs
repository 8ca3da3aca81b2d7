//! Which worker serves a request: workers with their health, breaker and load, and the policies that choose among
//! them. Nothing here performs I/O, waits or reads a clock; the caller passes `now`.

mod breaker;
mod health;
mod keys;
mod load;
mod policies;
mod policy;
mod retry_budget;
mod ring;
mod wait;
mod window;
mod worker;
mod worker_set;

pub use breaker::{Breaker, BreakerParams, BreakerState, Outcome, Permit};
pub use health::{Health, HealthParams, Probe, WorkerState};
pub use keys::{prefix_key, prefix_key_of_bytes, routing_key};
pub use load::{LoadReport, OwnLoad, REPORT_LIFETIME};
pub use policies::{UnknownPolicy, build_policy, policy_names};
pub use policy::{
    AssignmentMode, Candidate, DEFAULT_PRIORITY, EXPECTED_OUTPUT_TOKENS, Explanation, Policy, PolicyParams,
    RouteRequest, Verdict,
};
pub use retry_budget::{RetryBudget, RetryBudgetParams};
pub use worker::{COSTS, LoadGuard, Role, Worker, WorkerId, WorkerInfo};
pub use worker_set::{AddWorkerError, Explained, Query, SelectError, WorkerParams, WorkerSet};
