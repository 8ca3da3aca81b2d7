use std::sync::Barrier;

use super::*;
use crate::breaker::{BreakerState, Outcome};
use crate::health::Probe;
use crate::policies::build_policy;
use crate::policy::PolicyParams;

#[expect(
    clippy::disallowed_methods,
    reason = "a test needs some instant to count from; it never waits"
)]
fn start() -> Instant {
    Instant::now()
}

fn model(name: &str) -> WorkerInfo {
    WorkerInfo {
        model: Some(name.to_owned()),
        ..WorkerInfo::default()
    }
}

fn ready_worker(set: &WorkerSet, url: &str) -> Arc<Worker> {
    let worker = set.add(url, model("m")).expect("the URL is free");
    worker.observe(Probe::Healthy);
    worker
}

fn query(now: Instant) -> Query<'static> {
    Query {
        model: Some("m"),
        role: Role::Regular,
        request: RouteRequest::new(now, 100, 0),
        cached: &[],
        avoid: &[],
        only: None,
    }
}

fn select(set: &WorkerSet, query: &Query<'_>) -> Result<LoadGuard, SelectError> {
    set.select(
        query,
        &*build_policy("cache_aware", PolicyParams::default()).expect("listed"),
        &mut rand::rng(),
    )
}

fn trip(set: &WorkerSet, worker: &Arc<Worker>, now: Instant) {
    for _ in 0..set.params.breaker.failure_threshold {
        worker
            .begin(1, 0, now)
            .expect("closed")
            .record(Outcome::TransportError, now);
    }
    assert_eq!(worker.breaker_state(now), BreakerState::Open);
}

#[test]
fn load_counts_from_selection_until_the_guard_is_dropped() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let worker = ready_worker(&set, "grpc://a:1");
    let mut guards: Vec<LoadGuard> = (0..10)
        .map(|_| select(&set, &query(now)).expect("ready"))
        .collect();
    assert_eq!((worker.running_requests(), worker.pending_tokens()), (10, 1000));
    guards[0].record(Outcome::Answered, now);
    assert_eq!(
        worker.running_requests(),
        10,
        "an answer that began is still load"
    );
    guards.truncate(3);
    assert_eq!((worker.running_requests(), worker.pending_tokens()), (3, 300));
    drop(guards);
    assert_eq!((worker.running_requests(), worker.pending_tokens()), (0, 0));
}

#[test]
fn only_the_uncached_part_and_the_expected_answer_count_as_tokens() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let worker = ready_worker(&set, "grpc://a:1");
    let cached = [(worker.id(), 96)];
    let request = RouteRequest::new(now, 100, 20);
    let guard = select(
        &set,
        &Query {
            request,
            cached: &cached,
            ..query(now)
        },
    )
    .expect("ready");
    assert_eq!(guard.worker().pending_tokens(), 24);
}

#[test]
fn simultaneous_selections_spread_evenly() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    for port in 0..8 {
        ready_worker(&set, &format!("grpc://a:{port}"));
    }
    let barrier = Barrier::new(8);
    let guards: Vec<LoadGuard> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    barrier.wait();
                    (0..125)
                        .map(|_| select(&set, &query(now)).expect("ready"))
                        .collect::<Vec<_>>()
                })
            })
            .collect();
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    assert_eq!(guards.len(), 1000);
    assert!(set.list().iter().all(|worker| worker.running_requests() == 125));
    drop(guards);
    assert!(
        set.list()
            .iter()
            .all(|worker| worker.running_requests() == 0 && worker.pending_tokens() == 0)
    );
}

#[test]
fn a_url_added_again_counts_for_itself() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let old = ready_worker(&set, "grpc://a:1");
    let mut streams: Vec<LoadGuard> = (0..5)
        .map(|_| select(&set, &query(now)).expect("ready"))
        .collect();
    set.remove(old.id()).expect("registered");
    assert!(matches!(
        select(&set, &query(now)),
        Err(SelectError::UnknownModel { .. })
    ));
    streams.truncate(2);
    let new = ready_worker(&set, "grpc://a:1");
    assert_ne!(new.id(), old.id());
    let fresh = select(&set, &query(now)).expect("the new registration is ready");
    assert_eq!((old.running_requests(), new.running_requests()), (2, 1));
    drop(streams);
    drop(fresh);
    assert_eq!((old.running_requests(), new.running_requests()), (0, 0));
}

#[test]
fn a_draining_worker_stays_listed_gets_nothing_new_and_frees_its_url() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let old = ready_worker(&set, "grpc://a:1");
    let other = ready_worker(&set, "grpc://b:1");
    let _stream = old.begin(1, 0, now).expect("closed");
    old.drain();
    for _ in 0..20 {
        assert_eq!(
            select(&set, &query(now)).expect("one is ready").worker().id(),
            other.id()
        );
    }
    assert_eq!(old.running_requests(), 1);
    let new = ready_worker(&set, "grpc://a:1");
    assert_eq!(set.list().len(), 3);
    set.remove(new.id());
    let left: Vec<WorkerId> = set.list().iter().map(|worker| worker.id()).collect();
    assert_eq!(left, [old.id(), other.id()]);
}

#[test]
fn a_taken_url_is_refused() {
    let set = WorkerSet::new(WorkerParams::default());
    let first = set.add("grpc://a:1", WorkerInfo::default()).expect("free");
    let error = set.add("grpc://a:1", WorkerInfo::default()).expect_err("taken");
    assert_eq!(
        error,
        AddWorkerError {
            url: "grpc://a:1".to_owned(),
            id: first.id()
        }
    );
}

#[test]
fn an_unknown_model_differs_from_one_whose_workers_are_all_broken() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    for url in ["grpc://a:1", "grpc://b:1"] {
        trip(&set, &ready_worker(&set, url), now);
    }
    let error = select(&set, &query(now)).expect_err("both are broken");
    assert_eq!(
        error,
        SelectError::Unavailable {
            role: Role::Regular,
            loading: 0,
            unhealthy: 0,
            draining: 0,
            tripped: 2,
            retry_after: Some(Duration::from_secs(60)),
            trial_since: None,
        }
    );
    let unknown = Query {
        model: Some("other"),
        ..query(now)
    };
    assert_eq!(
        select(&set, &unknown).expect_err("no such model").to_string(),
        "no worker serves model \"other\"; models served: m"
    );
}

#[test]
fn a_model_is_not_called_unknown_before_every_worker_was_asked() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    ready_worker(&set, "grpc://a:1");
    let silent = set.add("grpc://b:1", WorkerInfo::default()).expect("free");
    let other = Query {
        model: Some("other"),
        ..query(now)
    };
    assert!(matches!(
        select(&set, &other),
        Err(SelectError::Unavailable { loading: 1, .. })
    ));
    silent.set_info(model("other"));
    silent.observe(Probe::Healthy);
    assert_eq!(
        select(&set, &other).expect("served after all").worker().id(),
        silent.id()
    );
    assert_eq!(set.models(), ["m", "other"]);
    assert_eq!(set.ready(Some("other")).len(), 1);
    assert_eq!(set.ready(None).len(), 2);
}

#[test]
fn one_trial_reaches_a_half_open_worker_and_a_dropped_trial_makes_room() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let worker = ready_worker(&set, "grpc://a:1");
    trip(&set, &worker, now);
    let later = now + Duration::from_secs(60);
    let trial = select(&set, &query(later)).expect("one trial");
    assert!(select(&set, &query(later)).is_err());
    drop(trial);
    for _ in 0..3 {
        select(&set, &query(later))
            .expect("trial")
            .record(Outcome::Answered, later);
    }
    assert_eq!(worker.breaker_state(later), BreakerState::Closed);
    assert_eq!(worker.running_requests(), 0);
}

#[test]
fn a_retry_goes_elsewhere_while_there_is_an_elsewhere() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let first = ready_worker(&set, "grpc://a:1");
    let avoid = [first.id()];
    let retry = Query {
        avoid: &avoid,
        only: None,
        ..query(now)
    };
    assert_eq!(
        select(&set, &retry).expect("the only one").worker().id(),
        first.id()
    );
    let second = ready_worker(&set, "grpc://b:1");
    for _ in 0..20 {
        assert_eq!(select(&set, &retry).expect("another").worker().id(), second.id());
    }
}

#[test]
fn roles_are_kept_apart() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let prefill = set
        .add(
            "grpc://p:1",
            WorkerInfo {
                role: Role::Prefill,
                ..model("m")
            },
        )
        .expect("free");
    prefill.observe(Probe::Healthy);
    let error = select(&set, &query(now)).expect_err("no regular worker");
    assert!(
        error.to_string().starts_with("no regular worker is available"),
        "{error}"
    );
    let prefill_leg = Query {
        role: Role::Prefill,
        ..query(now)
    };
    assert_eq!(
        select(&set, &prefill_leg).expect("ready").worker().id(),
        prefill.id()
    );
}
