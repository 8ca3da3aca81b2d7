//! Circuit breaker of one worker: passive evidence from real requests, counted over a sliding window.

use std::time::{Duration, Instant};

/// The window is kept as this many counters, so its edge moves in steps of a twelfth.
const SLOTS: usize = 12;

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
                self.window.count(outcome.is_failure(), now);
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

/// Calls and failures of the last `SLOTS` × `step`, in a ring of counters.
#[derive(Clone, Debug)]
struct Window {
    step: Duration,
    start: Option<Instant>,
    /// Number of the newest slot since `start`; slot `n` lives at `n % SLOTS`.
    newest: u64,
    slots: [(u32, u32); SLOTS],
}

impl Window {
    fn new(length: Duration) -> Self {
        let step = (length / SLOTS as u32).max(Duration::from_nanos(1));
        Self {
            step,
            start: None,
            newest: 0,
            slots: [(0, 0); SLOTS],
        }
    }

    fn count(&mut self, failed: bool, now: Instant) {
        self.advance(now);
        let (calls, failures) = &mut self.slots[(self.newest % SLOTS as u64) as usize];
        *calls = calls.saturating_add(1);
        *failures = failures.saturating_add(u32::from(failed));
    }

    fn totals(&mut self, now: Instant) -> (u32, u32) {
        self.advance(now);
        self.slots.iter().fold((0u32, 0u32), |(calls, failures), slot| {
            (calls.saturating_add(slot.0), failures.saturating_add(slot.1))
        })
    }

    fn advance(&mut self, now: Instant) {
        let start = *self.start.get_or_insert(now);
        let slot = (now.saturating_duration_since(start).as_nanos() / self.step.as_nanos()) as u64;
        let passed = slot.saturating_sub(self.newest).min(SLOTS as u64);
        for offset in 0..passed {
            self.slots[((slot - offset) % SLOTS as u64) as usize] = (0, 0);
        }
        self.newest = self.newest.max(slot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    #[expect(
        clippy::disallowed_methods,
        reason = "a test needs some instant to count from; it never waits"
    )]
    fn start() -> Instant {
        Instant::now()
    }

    fn breaker(failure_threshold: u32) -> Breaker {
        Breaker::new(BreakerParams {
            failure_threshold,
            ..BreakerParams::default()
        })
    }

    fn call(breaker: &mut Breaker, outcome: Outcome, now: Instant) {
        let permit = breaker.acquire(now).expect("the breaker lets this call through");
        breaker.record(permit, outcome, now);
    }

    fn opened(now: Instant) -> Breaker {
        let mut breaker = breaker(3);
        for _ in 0..3 {
            call(&mut breaker, Outcome::TransportError, now);
        }
        assert_eq!(breaker.state(now), BreakerState::Open);
        breaker
    }

    #[test]
    fn every_kind_of_failure_opens_it() {
        let now = start();
        for outcome in [Outcome::TransportError, Outcome::ServerError, Outcome::Stalled] {
            let mut breaker = breaker(2);
            call(&mut breaker, outcome, now);
            assert_eq!(breaker.state(now), BreakerState::Closed);
            call(&mut breaker, outcome, now);
            assert_eq!(breaker.state(now), BreakerState::Open);
            assert!(breaker.acquire(now).is_none());
            assert_eq!(breaker.retry_after(now), Some(TIMEOUT));
        }
    }

    #[test]
    fn answers_never_open_it() {
        let now = start();
        let mut breaker = breaker(1);
        for _ in 0..1000 {
            call(&mut breaker, Outcome::Answered, now);
        }
        assert_eq!(breaker.state(now), BreakerState::Closed);
    }

    #[test]
    fn failures_older_than_the_window_do_not_count() {
        let now = start();
        let mut breaker = breaker(3);
        call(&mut breaker, Outcome::ServerError, now);
        call(&mut breaker, Outcome::ServerError, now);
        let later = now + Duration::from_secs(121);
        call(&mut breaker, Outcome::ServerError, later);
        call(&mut breaker, Outcome::ServerError, later);
        assert_eq!(breaker.state(later), BreakerState::Closed);
        call(&mut breaker, Outcome::ServerError, later);
        assert_eq!(breaker.state(later), BreakerState::Open);
    }

    #[test]
    fn a_small_share_of_failures_leaves_it_closed_and_half_of_them_opens_it() {
        let now = start();
        let mut quiet = breaker(3);
        for _ in 0..20 {
            call(&mut quiet, Outcome::Answered, now);
            call(&mut quiet, Outcome::Answered, now);
            call(&mut quiet, Outcome::ServerError, now);
        }
        assert_eq!(quiet.state(now), BreakerState::Closed);
        let mut loud = breaker(3);
        for _ in 0..2 {
            call(&mut loud, Outcome::Answered, now);
            call(&mut loud, Outcome::ServerError, now);
        }
        call(&mut loud, Outcome::Answered, now);
        call(&mut loud, Outcome::ServerError, now);
        assert_eq!(loud.state(now), BreakerState::Open);
    }

    #[test]
    fn a_busy_worker_that_dies_is_out_after_the_threshold_in_a_row() {
        let now = start();
        let mut breaker = breaker(10);
        for _ in 0..1000 {
            call(&mut breaker, Outcome::Answered, now);
        }
        for _ in 0..10 {
            call(&mut breaker, Outcome::TransportError, now);
        }
        assert_eq!(breaker.state(now), BreakerState::Open);
    }

    #[test]
    fn half_open_lets_one_trial_out_at_a_time_and_closes_after_enough_of_them() {
        let mut now = start();
        let mut breaker = opened(now);
        now += TIMEOUT;
        assert_eq!(breaker.state(now), BreakerState::HalfOpen);
        for _ in 0..3 {
            now += Duration::from_secs(1);
            let trial = breaker.acquire(now).expect("one trial");
            assert!(breaker.acquire(now).is_none());
            assert_eq!(breaker.trial_since(), Some(now));
            breaker.record(trial, Outcome::Answered, now);
            assert_eq!(breaker.trial_since(), None);
        }
        assert_eq!(breaker.state(now), BreakerState::Closed);
        call(&mut breaker, Outcome::ServerError, now);
        assert_eq!(
            breaker.state(now),
            BreakerState::Closed,
            "old failures are forgotten"
        );
    }

    #[test]
    fn a_failed_trial_opens_it_for_another_timeout() {
        let mut now = start();
        let mut breaker = opened(now);
        now += TIMEOUT;
        call(&mut breaker, Outcome::Stalled, now);
        assert_eq!(breaker.state(now), BreakerState::Open);
        assert_eq!(breaker.retry_after(now), Some(TIMEOUT));
    }

    #[test]
    fn a_trial_without_outcome_makes_room_for_the_next() {
        let mut now = start();
        let mut breaker = opened(now);
        now += TIMEOUT;
        let abandoned = breaker.acquire(now).expect("trial");
        breaker.release(abandoned);
        let silent = breaker.acquire(now).expect("next trial");
        assert!(breaker.acquire(now + TIMEOUT / 2).is_none());
        now += TIMEOUT;
        assert!(breaker.acquire(now).is_some());
        breaker.record(silent, Outcome::Answered, now);
        assert!(
            breaker.acquire(now).is_none(),
            "a late trial does not speak for the one that is out"
        );
    }

    #[test]
    fn requests_from_before_it_opened_are_no_evidence() {
        let mut now = start();
        let mut breaker = breaker(1);
        let early = breaker.acquire(now).expect("closed");
        let late = breaker.acquire(now).expect("closed");
        call(&mut breaker, Outcome::TransportError, now);
        breaker.record(early, Outcome::Answered, now);
        assert_eq!(breaker.state(now), BreakerState::Open);
        now += TIMEOUT;
        let trial = breaker.acquire(now).expect("trial");
        breaker.record(late, Outcome::TransportError, now);
        assert_eq!(breaker.state(now), BreakerState::HalfOpen);
        breaker.record(trial, Outcome::Answered, now);
        assert_eq!(breaker.state(now), BreakerState::HalfOpen);
    }

    /// A breaker with one trial out, and its permit.
    fn tried(now: Instant) -> (Breaker, Permit) {
        let mut breaker = opened(now - TIMEOUT);
        let trial = breaker.acquire(now).expect("one trial");
        (breaker, trial)
    }

    #[test]
    fn a_settled_trial_counts_once_and_lets_the_next_out_before_it_ends() {
        let now = start() + TIMEOUT;
        let (mut breaker, mut first) = tried(now);
        assert!(first.is_trial() && breaker.settle(&mut first));
        assert!(!breaker.settle(&mut first), "it is settled");
        assert_eq!((breaker.trial_since(), breaker.retry_after(now)), (None, None));
        let mut second = breaker.acquire(now).expect("the next trial");
        assert!(breaker.settle(&mut second));
        breaker.record(first, Outcome::Answered, now);
        breaker.release(second);
        assert_eq!(breaker.state(now), BreakerState::HalfOpen, "two of three");
        let mut third = breaker.acquire(now).expect("the third trial");
        assert!(breaker.settle(&mut third));
        assert_eq!(breaker.state(now), BreakerState::Closed);
    }

    #[test]
    fn a_settled_trial_that_is_left_does_not_end_the_next() {
        let now = start() + TIMEOUT;
        let (mut breaker, mut first) = tried(now);
        breaker.settle(&mut first);
        let next = breaker.acquire(now).expect("the next trial");
        breaker.release(first);
        assert!(breaker.acquire(now).is_none(), "the next trial is out");
        breaker.record(next, Outcome::Answered, now);
        assert!(breaker.acquire(now).is_some());
    }

    #[test]
    fn a_settled_trial_that_fails_opens_a_half_open_breaker() {
        let now = start() + TIMEOUT;
        let (mut breaker, mut first) = tried(now);
        breaker.settle(&mut first);
        let next = breaker.acquire(now).expect("the next trial");
        breaker.record(first, Outcome::Stalled, now);
        assert_eq!(breaker.state(now), BreakerState::Open);
        breaker.record(next, Outcome::Answered, now);
        assert_eq!(breaker.state(now), BreakerState::Open);
    }

    #[test]
    fn a_settled_trial_that_fails_after_the_breaker_closed_is_one_failure_among_others() {
        let now = start() + TIMEOUT;
        let (mut breaker, mut first) = tried(now);
        breaker.settle(&mut first);
        call(&mut breaker, Outcome::Answered, now);
        call(&mut breaker, Outcome::Answered, now);
        assert_eq!(breaker.state(now), BreakerState::Closed);
        call(&mut breaker, Outcome::ServerError, now);
        call(&mut breaker, Outcome::ServerError, now);
        assert_eq!(breaker.state(now), BreakerState::Closed);
        breaker.record(first, Outcome::TransportError, now);
        assert_eq!(breaker.state(now), BreakerState::Open, "the third in a row");
    }

    #[test]
    fn a_settled_trial_of_an_earlier_round_is_no_evidence() {
        let now = start() + TIMEOUT;
        for restarts in [true, false] {
            let (mut breaker, mut first) = tried(now);
            breaker.settle(&mut first);
            if restarts {
                breaker.reset();
            } else {
                call(&mut breaker, Outcome::ServerError, now);
            }
            let later = now + TIMEOUT;
            let state = breaker.state(later);
            let trial = breaker.acquire(later).expect("closed, or one trial");
            breaker.record(first, Outcome::ServerError, later);
            assert_eq!(breaker.state(later), state);
            breaker.release(trial);
        }
    }

    #[test]
    fn ordinary_and_late_requests_have_nothing_to_settle() {
        let now = start() + TIMEOUT;
        let mut closed = breaker(3);
        let mut ordinary = closed.acquire(now).expect("closed");
        assert!(!ordinary.is_trial() && !closed.settle(&mut ordinary));
        let (mut breaker, mut silent) = tried(now);
        let later = now + TIMEOUT;
        let next = breaker.acquire(later).expect("room for the next trial");
        assert!(!breaker.settle(&mut silent), "the next trial speaks");
        assert_eq!(breaker.trial_since(), Some(later));
        breaker.release(next);
    }

    #[test]
    fn disabled_it_never_opens() {
        let now = start();
        let mut breaker = Breaker::new(BreakerParams {
            enabled: false,
            failure_threshold: 1,
            ..BreakerParams::default()
        });
        for _ in 0..100 {
            call(&mut breaker, Outcome::TransportError, now);
        }
        assert_eq!(breaker.state(now), BreakerState::Closed);
    }
}
