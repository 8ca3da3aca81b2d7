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
