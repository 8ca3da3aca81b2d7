//! Circuit breaker of one worker: passive evidence from real requests, counted over a sliding window.

use std::time::{Duration, Instant};

use crate::window::Window;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerParams {
    /// `false`: the breaker never opens.
    pub enabled: bool,
    /// Failures that open the breaker: so many in a row, or so many within the window if they are at least
    /// half of its calls. (A share, because a busy worker meets a few failures in any window.)
    pub failure_threshold: u32,
    /// Successful trials in a row that close it again.
    pub success_threshold: u32,
    /// How long it stays open before the first trial.
    pub timeout: Duration,
    /// How long an outcome counts.
    pub window: Duration,
}

impl Default for BreakerParams {
    fn default() -> Self {
        Self {
            enabled: true,
            failure_threshold: 10,
            success_threshold: 3,
            timeout: Duration::from_secs(60),
            window: Duration::from_secs(120),
        }
    }
}

/// How a request ended, as far as it says something about the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The worker answered; a 4xx is an answer too.
    Answered,
    /// No connection, or it broke.
    TransportError,
    /// The worker answered 5xx (gRPC: `Internal`, `Unknown`).
    ServerError,
    /// Nothing came for longer than the stall limit.
    Stalled,
}

impl Outcome {
    pub fn is_failure(self) -> bool {
        self != Self::Answered
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BreakerState {
    Closed,
    Open,
    HalfOpen,
}

impl BreakerState {
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::HalfOpen => "half_open",
        }
    }
}

/// Leave to send one request. It goes back to the breaker exactly once, by [`Breaker::record`] or
/// [`Breaker::release`].
#[derive(Debug, PartialEq, Eq)]
pub struct Permit {
    /// Which period of being closed, or which trial, this request belongs to. What ends after the breaker
    /// has moved on is no evidence about the new state.
    epoch: u64,
    /// The breaker has opened so often before.
    round: u64,
    kind: PermitKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PermitKind {
    Ordinary,
    Trial,
    /// A trial that has counted as a success while its request goes on.
    Settled,
}

impl Permit {
    /// Whether its request tried a half-open breaker.
    pub fn is_trial(&self) -> bool {
        self.kind != PermitKind::Ordinary
    }
}

#[derive(Clone, Debug)]
enum Circuit {
    Closed { in_a_row: u32 },
    Open { since: Instant },
    HalfOpen { successes: u32, trial: Option<Instant> },
}

#[derive(Clone, Debug)]
pub struct Breaker {
    params: BreakerParams,
    circuit: Circuit,
    epoch: u64,
    /// Counts openings, and processes.
    round: u64,
    /// Of calls, and of those that failed.
    window: Window,
}

impl Breaker {
    pub fn new(params: BreakerParams) -> Self {
        let window = Window::new(params.window);
        Self {
            params,
            circuit: Circuit::Closed { in_a_row: 0 },
            epoch: 0,
            round: 0,
            window,
        }
    }

    /// State as it is at `now`: an open breaker whose time is over shows as half-open.
    pub fn state(&self, now: Instant) -> BreakerState {
        match self.circuit {
            Circuit::Closed { .. } => BreakerState::Closed,
            Circuit::Open { since } if now.saturating_duration_since(since) < self.params.timeout => {
                BreakerState::Open
            }
            Circuit::Open { .. } | Circuit::HalfOpen { .. } => BreakerState::HalfOpen,
        }
    }

    /// Whether every request is let through, whatever the time.
    pub fn is_closed(&self) -> bool {
        matches!(self.circuit, Circuit::Closed { .. })
    }

    /// Whether [`Breaker::acquire`] would give a permit.
    pub fn allows(&self, now: Instant) -> bool {
        match self.circuit {
            Circuit::Closed { .. } => true,
            Circuit::Open { since } => now.saturating_duration_since(since) >= self.params.timeout,
            // A trial that has said nothing for a whole timeout no longer blocks the next one.
            Circuit::HalfOpen { trial, .. } => {
                trial.is_none_or(|started| now.saturating_duration_since(started) >= self.params.timeout)
            }
        }
    }

    /// Time until the breaker can let a request through; `None` if it does now.
    pub fn retry_after(&self, now: Instant) -> Option<Duration> {
        let blocked_since = match self.circuit {
            Circuit::Open { since } => since,
            Circuit::HalfOpen {
                trial: Some(started), ..
            } => started,
            Circuit::Closed { .. } | Circuit::HalfOpen { trial: None, .. } => return None,
        };
        let left = self
            .params
            .timeout
            .saturating_sub(now.saturating_duration_since(blocked_since));
        (!left.is_zero()).then_some(left)
    }

    /// Since when the one trial of a half-open breaker is out without an outcome.
    pub fn trial_since(&self) -> Option<Instant> {
        match self.circuit {
            Circuit::HalfOpen { trial, .. } => trial,
            Circuit::Closed { .. } | Circuit::Open { .. } => None,
        }
    }

    /// Leave to send a request, or `None` while the breaker is open or its one trial is out.
    pub fn acquire(&mut self, now: Instant) -> Option<Permit> {
        if !self.allows(now) {
            return None;
        }
        let kind = match &mut self.circuit {
            Circuit::Closed { .. } => PermitKind::Ordinary,
            Circuit::Open { .. } => {
                self.epoch += 1;
                self.circuit = Circuit::HalfOpen {
                    successes: 0,
                    trial: Some(now),
                };
                PermitKind::Trial
            }
            Circuit::HalfOpen { trial, .. } => {
                self.epoch += 1;
                *trial = Some(now);
                PermitKind::Trial
            }
        };
        Some(Permit {
            epoch: self.epoch,
            round: self.round,
            kind,
        })
    }

    /// Takes in that a request is being answered: a trial has succeeded with that, so that the next one need not
    /// wait for its end. The permit is still to be given back. Returns whether anything changed.
    pub fn settle(&mut self, permit: &mut Permit) -> bool {
        if permit.kind != PermitKind::Trial || permit.epoch != self.epoch {
            return false;
        }
        permit.kind = PermitKind::Settled;
        self.trial_succeeded();
        true
    }

    /// Takes in how a request ended. A trial that is settled has been counted: only its failure is news, like that of
    /// any request of the same round.
    pub fn record(&mut self, permit: Permit, outcome: Outcome, now: Instant) {
        let counts = match permit.kind {
            PermitKind::Settled => permit.round == self.round && outcome.is_failure(),
            PermitKind::Ordinary | PermitKind::Trial => permit.epoch == self.epoch,
        };
        if !counts || !self.params.enabled {
            return;
        }
        match &mut self.circuit {
            Circuit::Closed { in_a_row } => {
                *in_a_row = if outcome.is_failure() { *in_a_row + 1 } else { 0 };
                let in_a_row = *in_a_row;
                self.window.count(1, u32::from(outcome.is_failure()), now);
                if self.must_open(in_a_row, now) {
                    self.open(now);
                }
            }
            Circuit::Open { .. } => {}
            Circuit::HalfOpen { .. } if outcome.is_failure() => self.open(now),
            Circuit::HalfOpen { .. } => self.trial_succeeded(),
        }
    }

    /// Gives a permit back without evidence: the client left, or the request was never sent.
    pub fn release(&mut self, permit: Permit) {
        if permit.kind != PermitKind::Trial || permit.epoch != self.epoch {
            return;
        }
        if let Circuit::HalfOpen { trial, .. } = &mut self.circuit {
            *trial = None;
        }
    }

    /// Starts anew: what was learned is about a process that is gone.
    pub fn reset(&mut self) {
        self.round += 1;
        self.close();
    }

    fn trial_succeeded(&mut self) {
        if let Circuit::HalfOpen { successes, trial } = &mut self.circuit {
            *successes += 1;
            *trial = None;
            if *successes >= self.params.success_threshold {
                self.close();
            }
        }
    }

    fn must_open(&mut self, in_a_row: u32, now: Instant) -> bool {
        let threshold = self.params.failure_threshold;
        let (calls, failures) = self.window.totals(now);
        in_a_row.min(failures) >= threshold || (failures >= threshold && failures * 2 >= calls)
    }

    fn open(&mut self, now: Instant) {
        self.epoch += 1;
        self.round += 1;
        self.circuit = Circuit::Open { since: now };
    }

    fn close(&mut self) {
        self.epoch += 1;
        self.window = Window::new(self.params.window);
        self.circuit = Circuit::Closed { in_a_row: 0 };
    }
}

#[cfg(test)]
mod tests;
