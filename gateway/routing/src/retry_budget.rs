//! How many retries there may be: a share of the requests, so that retries never multiply what ails the workers.

use std::time::{Duration, Instant};

use crate::window::Window;

/// How long a request and a retry count.
const WINDOW: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryBudgetParams {
    /// Retries for each request.
    pub ratio: f64,
    /// Retries per second that there may be besides, for times of few requests.
    pub min_per_second: u32,
}

/// Retries are counted over the same ten seconds as the requests that pay for them.
#[derive(Debug)]
pub struct RetryBudget {
    params: RetryBudgetParams,
    /// Of requests, and of retries.
    window: Window,
}

impl RetryBudget {
    pub fn new(params: RetryBudgetParams) -> Self {
        Self {
            params,
            window: Window::new(WINDOW),
        }
    }

    /// Takes in a request, whatever becomes of it.
    pub fn request(&mut self, now: Instant) {
        self.window.count(1, 0, now);
    }

    /// Takes in a retry, if there may be one more.
    pub fn spend(&mut self, now: Instant) -> bool {
        let (requests, retries) = self.window.totals(now);
        let floor = f64::from(self.params.min_per_second) * WINDOW.as_secs_f64();
        let fits = f64::from(retries) + 1.0 <= self.params.ratio * f64::from(requests) + floor;
        if fits {
            self.window.count(0, 1, now);
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "a test needs some instant to count from; it never waits"
    )]
    fn start() -> Instant {
        Instant::now()
    }

    fn budget(ratio: f64, min_per_second: u32) -> RetryBudget {
        RetryBudget::new(RetryBudgetParams {
            ratio,
            min_per_second,
        })
    }

    #[test]
    fn a_fifth_of_the_requests_may_be_tried_again() {
        let (mut budget, now) = (budget(0.2, 0), start());
        assert!(!budget.spend(now));
        for _ in 0..50 {
            budget.request(now);
        }
        let granted = (0..50).filter(|_| budget.spend(now)).count();
        assert_eq!(granted, 10);
    }

    #[test]
    fn few_requests_may_be_tried_again_as_well() {
        let (mut budget, now) = (budget(0.2, 1), start());
        budget.request(now);
        assert_eq!((0..50).filter(|_| budget.spend(now)).count(), 10);
    }

    #[test]
    fn what_was_spent_comes_back_with_time() {
        let (mut budget, start) = (budget(0.0, 1), start());
        let granted = |budget: &mut RetryBudget, now| (0..50).filter(|_| budget.spend(now)).count();
        assert_eq!(granted(&mut budget, start), 10);
        assert_eq!(granted(&mut budget, start + WINDOW / 2), 0);
        assert_eq!(granted(&mut budget, start + WINDOW), 10);
    }

    proptest! {
        /// Against lists of times: a window covers eleven to twelve twelfths of its length.
        #[test]
        fn retries_never_exceed_their_share(
            ratio in 0.0..2.0f64,
            min_per_second in 0u32..3,
            steps in prop::collection::vec((0u64..2000, any::<bool>()), 1..300),
        ) {
            let mut budget = budget(ratio, min_per_second);
            let start = start();
            let (mut now, mut requests, mut retries) = (start, Vec::new(), Vec::new());
            for (passed, is_request) in steps {
                now += Duration::from_millis(passed);
                let within = |times: &[Instant], span: Duration| {
                    times.iter().filter(|at| now.duration_since(**at) < span).count() as f64
                };
                if is_request {
                    budget.request(now);
                    requests.push(now);
                } else if budget.spend(now) {
                    retries.push(now);
                    let most = ratio * within(&requests, WINDOW) + 10.0 * f64::from(min_per_second);
                    prop_assert!(within(&retries, WINDOW * 11 / 12) <= most);
                } else {
                    let least = ratio * within(&requests, WINDOW * 11 / 12) + 10.0 * f64::from(min_per_second);
                    prop_assert!(within(&retries, WINDOW) + 1.0 > least);
                }
            }
        }
    }
}
