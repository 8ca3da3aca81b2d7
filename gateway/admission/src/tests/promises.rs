//! What callers are promised: fair shares, ends of waits, honest times to come back.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::{Ask, Class, Entered, Gate, GateParams, Left, Limits, Rate, Reason, Refusal, TenantId, Ticket};

const SECOND: Duration = Duration::from_secs(1);
const GREEDY: TenantId = TenantId(1);
const MODEST: TenantId = TenantId(2);

fn ask(tenant: TenantId) -> Ask {
    Ask {
        tenant,
        class: Class::Default,
        tokens: 10,
    }
}

fn of_class(tenant: TenantId, class: Class) -> Ask {
    Ask { class, ..ask(tenant) }
}

fn one_at_a_time(max_waiting: usize) -> (Gate, Instant) {
    let now = Instant::now();
    let params = GateParams {
        max_running: Some(1),
        max_waiting,
        ..GateParams::default()
    };
    (Gate::new(params, now), now)
}

fn limited(limits: Limits) -> (Gate, Instant) {
    let now = Instant::now();
    (
        Gate::new(
            GateParams {
                limits,
                ..GateParams::default()
            },
            now,
        ),
        now,
    )
}

#[track_caller]
fn running(entered: Result<Entered, Refusal>) -> Ticket {
    match entered {
        Ok(Entered::Running(ticket)) => ticket,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn waiting(entered: Result<Entered, Refusal>) -> Ticket {
    match entered {
        Ok(Entered::Waiting {
            ticket,
            displaced: None,
        }) => ticket,
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(entered: Result<Entered, Refusal>, reason: Reason) -> Duration {
    let refusal = entered.unwrap_err();
    assert_eq!(refusal.reason, reason);
    refusal.retry_after
}

proptest! {
    /// While two tenants both wait, neither gets more, by weight, than a request of each ahead of the other.
    #[test]
    fn work_is_shared_by_weight(
        costs in prop::collection::vec((1..400_u64, 1..400_u64), 20..60),
        weights in (1..6_u32, 1..6_u32),
        num_before in 0..20_usize,
    ) {
        let now = Instant::now();
        let limits = |weight| Limits { weight, ..Limits::default() };
        let of_tenants = HashMap::from([(GREEDY, limits(weights.0)), (MODEST, limits(weights.1))]);
        let params = GateParams { max_running: Some(1), of_tenants, ..GateParams::default() };
        let mut gate = Gate::new(params, now);
        // What one had for itself before is held neither for nor against it.
        for _ in 0..num_before {
            let alone = running(gate.enter(ask(GREEDY), now));
            gate.leave(alone, None, now);
        }
        let mut current = running(gate.enter(ask(TenantId(3)), now));
        let mut asks = HashMap::new();
        for (greedy, modest) in &costs {
            for (tenant, tokens) in [(GREEDY, *greedy), (MODEST, *modest)] {
                let ask = Ask { tokens, ..ask(tenant) };
                asks.insert(waiting(gate.enter(ask, now)), ask);
            }
        }
        let weight_of = |ask: &Ask| f64::from(if ask.tenant == GREEDY { weights.0 } else { weights.1 });
        let mut left = HashMap::from([(GREEDY, costs.len()), (MODEST, costs.len())]);
        let mut done = HashMap::from([(GREEDY, 0.0), (MODEST, 0.0)]);
        while left.values().all(|left| *left > 0) {
            gate.leave(current, None, now);
            current = gate.grant(now).unwrap();
            let ask = asks[&current];
            *left.get_mut(&ask.tenant).unwrap() -= 1;
            *done.get_mut(&ask.tenant).unwrap() += ask.tokens as f64 / weight_of(&ask);
            let bound = 400.0 / f64::from(weights.0) + 400.0 / f64::from(weights.1);
            prop_assert!((done[&GREEDY] - done[&MODEST]).abs() <= bound, "{done:?} {bound}");
        }
    }

    /// However requests come, a tenant never starts more in a minute than twice what it may in one.
    #[test]
    fn a_rate_holds_in_every_minute(pauses in prop::collection::vec(0..9000_u64, 1..300), limit in 1..20_u64) {
        let (mut gate, mut now) = limited(Limits { requests_per_minute: Some(limit), ..Limits::default() });
        let mut starts: Vec<Instant> = Vec::new();
        for millis in pauses {
            now += Duration::from_millis(millis);
            match gate.enter(ask(GREEDY), now) {
                Ok(_) => starts.push(now),
                Err(refusal) => {
                    prop_assert_eq!(refusal.reason, Reason::TenantRequests);
                    now += refusal.retry_after;
                    // Who comes back then is let in.
                    running(gate.enter(ask(GREEDY), now));
                    starts.push(now);
                }
            }
            let recent = starts.iter().filter(|start| now - **start < SECOND * 60).count();
            prop_assert!(recent as u64 <= 2 * limit, "{recent} of {limit}");
        }
    }
}

#[test]
fn a_greedy_tenant_makes_a_modest_one_wait_for_one_grant() {
    let (mut gate, now) = one_at_a_time(2000);
    let mut current = running(gate.enter(ask(GREEDY), now));
    for _ in 0..1000 {
        waiting(gate.enter(ask(GREEDY), now));
    }
    for _ in 0..20 {
        let modest = waiting(gate.enter(ask(MODEST), now));
        let mut num_grants = 0;
        while current != modest {
            gate.leave(current, Some(10), now);
            current = gate.grant(now).unwrap();
            num_grants += 1;
        }
        assert!(num_grants <= 2, "{num_grants}");
    }
}

#[test]
fn what_requests_really_cost_counts() {
    let (mut gate, now) = one_at_a_time(100);
    let mut current = running(gate.enter(ask(GREEDY), now));
    let mut asks = HashMap::from([(current, GREEDY)]);
    for tenant in [GREEDY, MODEST].repeat(40) {
        asks.insert(waiting(gate.enter(ask(tenant), now)), tenant);
    }
    let mut counts = HashMap::from([(GREEDY, 0), (MODEST, 0)]);
    for _ in 0..40 {
        // Believed to be alike, one costs four times what the other does.
        let used = if asks[&current] == GREEDY { 40 } else { 10 };
        *counts.get_mut(&asks[&current]).unwrap() += 1;
        gate.leave(current, Some(used), now);
        current = gate.grant(now).unwrap();
    }
    assert_eq!(counts, HashMap::from([(GREEDY, 8), (MODEST, 32)]));
}

#[test]
fn the_more_urgent_goes_first_and_the_patient_rise() {
    let (mut gate, start) = one_at_a_time(100);
    let mut current = running(gate.enter(ask(GREEDY), start));
    let bulk = waiting(gate.enter(of_class(GREEDY, Class::Bulk), start));
    let mut num_before = 0;
    // One more urgent request comes each second, and one ends.
    for second in 0..60 {
        let now = start + SECOND * second;
        waiting(gate.enter(of_class(MODEST, Class::Interactive), now));
        gate.leave(current, Some(10), now);
        current = gate.grant(now).unwrap();
        if current == bulk {
            break;
        }
        num_before += 1;
    }
    assert_eq!((current == bulk, num_before), (true, 30));
}

#[test]
fn a_full_queue_makes_room_for_who_has_less_in_it() {
    let (mut gate, now) = one_at_a_time(4);
    running(gate.enter(ask(GREEDY), now));
    let greedy: Vec<Ticket> = (0..4).map(|_| waiting(gate.enter(ask(GREEDY), now))).collect();
    refused(gate.enter(ask(GREEDY), now), Reason::Full);
    for last in [greedy[3], greedy[2]] {
        match gate.enter(ask(MODEST), now) {
            Ok(Entered::Waiting {
                displaced: Some(displaced),
                ..
            }) => assert_eq!(displaced, last),
            other => panic!("{other:?}"),
        }
        assert_eq!(gate.leave(last, None, now), Left::Gone);
    }
    // Both have two now.
    refused(gate.enter(ask(MODEST), now), Reason::Full);
    match gate.enter(of_class(MODEST, Class::System), now) {
        Ok(Entered::Waiting {
            displaced: Some(_), ..
        }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(gate.num_waiting(), 4);
}

#[test]
fn a_tenants_cap_leaves_the_rest_to_others() {
    let now = Instant::now();
    let limits = Limits {
        max_running: Some(2),
        ..Limits::default()
    };
    let params = GateParams {
        max_running: Some(3),
        max_waiting: 1,
        limits,
        ..GateParams::default()
    };
    let mut gate = Gate::new(params, now);
    let first = running(gate.enter(ask(GREEDY), now));
    running(gate.enter(ask(GREEDY), now));
    let third = waiting(gate.enter(ask(GREEDY), now));
    assert_eq!(gate.grant(now), None);
    refused(gate.enter(ask(GREEDY), now), Reason::TenantRunning);
    // One that waits for its own tenant only is in nobody's way.
    running(gate.enter(ask(MODEST), now));
    gate.leave(first, None, now);
    assert_eq!(gate.grant(now), Some(third));
}

#[test]
fn tokens_are_corrected_by_what_was_used() {
    let (mut gate, now) = limited(Limits {
        tokens_per_minute: Some(60),
        ..Limits::default()
    });
    let first = running(gate.enter(ask(GREEDY), now));
    gate.leave(first, Some(0), now);
    let second = running(gate.enter(
        Ask {
            tokens: 60,
            ..ask(GREEDY)
        },
        now,
    ));
    assert_eq!(
        refused(gate.enter(ask(GREEDY), now), Reason::TenantTokens),
        SECOND * 10
    );
    gate.leave(second, Some(90), now);
    let wait = refused(gate.enter(ask(GREEDY), now), Reason::TenantTokens);
    assert_eq!(wait, SECOND * 40);
    running(gate.enter(ask(MODEST), now));
    running(gate.enter(ask(GREEDY), now + wait));
}

#[test]
fn all_together_have_a_rate_too() {
    let now = Instant::now();
    let rate = Some(Rate {
        per_second: 2,
        burst: 3,
    });
    let mut gate = Gate::new(
        GateParams {
            rate,
            ..GateParams::default()
        },
        now,
    );
    for tenant in 0..3 {
        running(gate.enter(ask(TenantId(tenant)), now));
    }
    let wait = refused(gate.enter(ask(TenantId(4)), now), Reason::Rate);
    assert_eq!(wait, SECOND / 2);
    running(gate.enter(ask(TenantId(4)), now + wait));
}

#[test]
fn who_comes_back_when_told_finds_a_place() {
    let (mut gate, start) = one_at_a_time(1);
    let held = SECOND * 6;
    let first = running(gate.enter(ask(GREEDY), start));
    let second = waiting(gate.enter(ask(GREEDY), start));
    let mut now = start + held;
    gate.leave(first, None, now);
    assert_eq!(gate.grant(now), Some(second));
    waiting(gate.enter(ask(GREEDY), now));
    now += SECOND * 2;
    let wait = refused(gate.enter(ask(GREEDY), now), Reason::Full);
    assert_eq!(wait, SECOND * 4);
    now += wait;
    gate.leave(second, None, now);
    assert!(gate.grant(now).is_some());
    waiting(gate.enter(ask(GREEDY), now));
    // One that runs for longer than usual is not waited for longer than those that wait.
    now += SECOND * 59;
    assert_eq!(refused(gate.enter(ask(GREEDY), now), Reason::Full), SECOND);
}

#[test]
fn a_tenant_at_its_cap_is_told_when_one_of_its_own_ends() {
    let start = Instant::now();
    let limits = Limits {
        max_running: Some(1),
        ..Limits::default()
    };
    let params = GateParams {
        max_running: Some(2),
        max_waiting: 0,
        limits,
        ..GateParams::default()
    };
    let mut gate = Gate::new(params, start);
    let first = running(gate.enter(ask(GREEDY), start));
    gate.leave(first, Some(10), start + SECOND * 10);
    let now = start + SECOND * 10;
    running(gate.enter(ask(MODEST), now));
    let own = running(gate.enter(ask(GREEDY), now + SECOND * 4));
    let now = now + SECOND * 5;
    assert_eq!(
        refused(gate.enter(ask(TenantId(3)), now), Reason::Full),
        SECOND * 5
    );
    let wait = refused(gate.enter(ask(GREEDY), now), Reason::TenantRunning);
    assert_eq!(wait, SECOND * 9);
    gate.leave(own, Some(0), now + wait);
    running(gate.enter(ask(GREEDY), now + wait));
}

#[test]
fn what_fails_at_once_gives_nobody_hope() {
    let (mut gate, start) = one_at_a_time(0);
    let served = running(gate.enter(ask(GREEDY), start));
    let now = start + SECOND * 8;
    gate.leave(served, Some(10), now);
    for _ in 0..20 {
        let failed = running(gate.enter(ask(GREEDY), now));
        gate.leave(failed, Some(0), now);
    }
    running(gate.enter(ask(GREEDY), now));
    assert_eq!(refused(gate.enter(ask(MODEST), now), Reason::Full), SECOND * 8);
}

#[test]
fn waiters_that_leave_cost_nothing_and_free_their_places() {
    let now = Instant::now();
    let limits = Limits {
        requests_per_minute: Some(3),
        tokens_per_minute: Some(30),
        ..Limits::default()
    };
    let params = GateParams {
        max_running: Some(1),
        max_waiting: 1,
        limits,
        ..GateParams::default()
    };
    let mut gate = Gate::new(params, now);
    let first = running(gate.enter(ask(GREEDY), now));
    for _ in 0..1000 {
        let waiter = waiting(gate.enter(ask(GREEDY), now));
        assert_eq!(gate.leave(waiter, None, now), Left::Waiting);
    }
    gate.leave(first, None, now);
    assert_eq!(
        (gate.num_running(), gate.num_waiting(), gate.grant(now)),
        (0, 0, None)
    );
    running(gate.enter(ask(GREEDY), now));
}

#[test]
fn tenants_that_are_gone_are_forgotten() {
    let (mut gate, start) = limited(Limits {
        requests_per_minute: Some(10),
        ..Limits::default()
    });
    for number in 0..100_000 {
        let now = start + SECOND * number;
        let ticket = running(gate.enter(ask(TenantId(u128::from(number))), now));
        gate.leave(ticket, None, now);
        assert!(gate.num_tenants() <= 130, "{}", gate.num_tenants());
    }
}
