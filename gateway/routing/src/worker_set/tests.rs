use std::sync::Barrier;

use rand::SeedableRng;
use rand::rngs::StdRng;

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

#[test]
fn explaining_counts_nothing_and_names_every_candidate() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let workers: Vec<_> = (0..3)
        .map(|port| ready_worker(&set, &format!("grpc://a:{port}")))
        .collect();
    trip(&set, &workers[1], now);
    let policy = build_policy("least_load", PolicyParams::default()).expect("listed");
    let _busy = workers[0].begin(500, 10, now).expect("closed");
    let cached = [(workers[2].id(), 64), (workers[1].id(), 99)];
    let asked = Query {
        cached: &cached,
        ..query(now)
    };
    let explained = set
        .explain(&asked, &*policy, &mut rand::rng())
        .expect("two are available");
    let urls: Vec<&str> = explained
        .candidates
        .iter()
        .map(|(worker, _)| worker.url())
        .collect();
    assert_eq!(urls, ["grpc://a:0", "grpc://a:2"]);
    let (_, last) = explained.candidates[1];
    assert_eq!((last.position, last.cached_tokens), (2, 64));
    assert_eq!(explained.explanation.chosen, Some(1));
    let verdicts = &explained.explanation.verdicts;
    assert!(verdicts[0].score > verdicts[1].score, "{verdicts:?}");
    assert_eq!(workers[2].running_requests(), 0);
    trip(&set, &workers[0], now);
    trip(&set, &workers[2], now);
    assert!(set.explain(&asked, &*policy, &mut rand::rng()).is_err());
}

#[test]
fn a_prompt_is_load_until_its_answer_begins_and_measures_the_worker() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let worker = ready_worker(&set, "grpc://a:1");
    let mut first = worker.begin(600, 20, now).expect("closed");
    let mut second = worker.begin(400, 20, now).expect("closed");
    assert_eq!(worker.pending_tokens(), 1040);
    first.settle(now + Duration::from_secs(1));
    first.settle(now + Duration::from_secs(9));
    assert_eq!(worker.pending_tokens(), 440);
    assert_eq!(worker.prefill_rate(), Some(600.0));
    // Both prompts had to be computed before the answer to the second.
    second.settle(now + Duration::from_secs(1));
    let rate = worker.prefill_rate().expect("measured");
    assert!((700.0..=900.0).contains(&rate), "{rate}");
    assert_eq!((worker.pending_tokens(), worker.running_requests()), (40, 2));
    drop((first, second));
    assert_eq!(worker.pending_tokens(), 0);
    worker.restarted();
    assert_eq!(worker.prefill_rate(), None);
}

#[test]
fn labels_weigh_workers() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let labelled = |url: &str, labels: &[(&str, &str)]| {
        let worker = ready_worker(&set, url);
        worker.set_info(WorkerInfo {
            labels: labels
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            ..model("m")
        });
        worker
    };
    let preferred = labelled("grpc://a:1", &[("priority", "60"), ("cost", "2.5")]);
    labelled("grpc://b:1", &[("priority", "high"), ("cost", "-1")]);
    let policy = build_policy("random", PolicyParams::default()).expect("listed");
    let explained = set
        .explain(&query(now), &*policy, &mut rand::rng())
        .expect("ready");
    let weights: Vec<(u32, f32)> = explained
        .candidates
        .iter()
        .map(|(_, candidate)| (candidate.priority, candidate.cost))
        .collect();
    assert_eq!(weights, [(60, 2.5), (50, 1.0)]);
    for _ in 0..20 {
        let guard = select(&set, &query(now)).expect("ready");
        assert_ne!(guard.worker().id(), preferred.id(), "it counts as slower");
    }
}

#[test]
fn workers_that_change_what_they_serve_are_found_at_once() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let worker = ready_worker(&set, "grpc://a:1");
    select(&set, &query(now)).expect("ready");
    worker.set_info(model("other"));
    assert!(matches!(
        select(&set, &query(now)),
        Err(SelectError::UnknownModel { .. })
    ));
    let other = Query {
        model: Some("other"),
        ..query(now)
    };
    select(&set, &other).expect("ready");
    worker.drain();
    assert!(select(&set, &other).is_err());
}

#[test]
fn policies_that_draw_by_chance_choose_as_if_they_saw_all() {
    let now = start();
    let set = WorkerSet::new(WorkerParams::default());
    let workers: Vec<_> = (0..40)
        .map(|port| ready_worker(&set, &format!("grpc://a:{port}")))
        .collect();
    trip(&set, &workers[0], now);
    let _busy: Vec<LoadGuard> = workers[20..]
        .iter()
        .map(|worker| worker.begin(1000, 0, now).expect("closed"))
        .collect();
    let mut rng = StdRng::seed_from_u64(4);
    // Of 38 workers 20 are busy; of two drawn, both have to be.
    for (name, share_of_busy) in [
        ("random", 20.0 / 38.0),
        ("power_of_two", 20.0 / 38.0 * 19.0 / 37.0),
    ] {
        let policy = build_policy(name, PolicyParams::default()).expect("listed");
        let avoid = [workers[1].id()];
        let asked = Query {
            avoid: &avoid,
            ..query(now)
        };
        let chosen: Vec<u64> = (0..4000)
            .map(|_| {
                let guard = set.select(&asked, &*policy, &mut rng).expect("ready");
                guard.worker().id().number()
            })
            .collect();
        assert!(
            chosen.iter().all(|id| *id > 2),
            "one is broken and one is avoided"
        );
        let busy = chosen.iter().filter(|id| **id > 20).count() as f64 / 4000.0;
        assert!(
            (busy - share_of_busy).abs() < 0.04,
            "{name}: {busy} and not {share_of_busy}"
        );
    }
    // All but one are broken: chance rarely meets it, and it is found all the same.
    for worker in &workers[1..39] {
        trip(&set, worker, now);
    }
    let policy = build_policy("power_of_two", PolicyParams::default()).expect("listed");
    for _ in 0..50 {
        let guard = set.select(&query(now), &*policy, &mut rng).expect("one is left");
        assert_eq!(guard.worker().id(), workers[39].id());
    }
}

#[test]
fn a_worker_that_is_drawn_by_chance_counts_what_it_holds() {
    let (set, now) = (WorkerSet::new(WorkerParams::default()), start());
    let cached: Vec<(WorkerId, usize)> = (0..20)
        .map(|port| (ready_worker(&set, &format!("grpc://a:{port}")).id(), 90))
        .collect();
    let policy = build_policy("power_of_two", PolicyParams::default()).expect("listed");
    let asked = Query {
        cached: &cached,
        ..query(now)
    };
    let guard = set.select(&asked, &*policy, &mut rand::rng()).expect("ready");
    assert_eq!(guard.worker().pending_tokens(), 10);
}
