//! How often and when a failed attempt is repeated.

use std::time::Duration;

use parking_lot::Mutex;
use rand::RngExt;
use smg_config::RetryOptions;
use smg_routing::{RetryBudget, RetryBudgetParams};
use tokio::time::Instant;

pub struct Retry {
    pub max_attempts: u32,
    options: RetryOptions,
    budget: Mutex<RetryBudget>,
}

impl Retry {
    pub fn new(options: &RetryOptions) -> Self {
        let params = RetryBudgetParams {
            ratio: options.retry_budget_ratio,
            min_per_second: options.retry_budget_min_per_second,
        };
        Self {
            max_attempts: options.attempts(),
            options: options.clone(),
            budget: Mutex::new(RetryBudget::new(params)),
        }
    }

    /// The wait after `failed` attempts (at least 1).
    pub fn backoff(&self, failed: u32) -> Duration {
        let jitter = self.options.retry_jitter_factor;
        let factor = rand::rng().random_range(1.0 - jitter..=1.0 + jitter);
        self.options.backoff(failed.saturating_sub(1)).mul_f64(factor)
    }

    /// Takes in the first attempt of a prompt.
    pub fn began(&self) {
        self.budget.lock().request(Instant::now().into_std());
    }

    /// Whether the budget has one more attempt, which is spent with that.
    pub fn spend(&self) -> bool {
        self.budget.lock().spend(Instant::now().into_std())
    }
}
