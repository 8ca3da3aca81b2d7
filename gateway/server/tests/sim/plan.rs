//! What happens under a seed: the gateway's options, the clients, the faults. The same seed makes the same plan.

use std::time::Duration;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use smg::config::Policy;
use smg_simulator::{Code, HealthScript, Outcome, Script};

const NUM_CLIENTS: usize = 60;
const NUM_FAULTS: usize = 24;

/// Clients come within this time.
const SPAN: Duration = Duration::from_secs(20);

pub struct Plan {
    pub num_workers: usize,
    pub options: Value,
    pub clients: Vec<Client>,
    pub faults: Vec<Step>,
}

pub struct Client {
    pub starts: Duration,
    pub prompt: String,
    pub streams: bool,
    /// When it leaves, if it has no answer until then.
    pub patience: Option<Duration>,
}

pub struct Step {
    pub after: Duration,
    pub worker: usize,
    pub fault: Fault,
}

pub enum Fault {
    /// The process dies. If it is dead: it was only away, or another one takes its place.
    Die {
        is_other: bool,
    },
    /// Nothing passes between gateway and worker, in either direction, until the next one of these.
    Partition,
    /// Its connections break; it lives.
    Flap,
    Generate(Box<Script>),
    Say(HealthScript),
    LoseEvents(usize),
    ForgetHistory,
    EndEvents,
    ClearCache,
    RestartCache,
}

impl Plan {
    pub fn of(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let num_workers = rng.random_range(2..=4);
        Self {
            num_workers,
            options: options(rng),
            clients: (0..NUM_CLIENTS).map(|number| client(rng, number)).collect(),
            faults: (0..NUM_FAULTS)
                .map(|_| Step {
                    after: millis(rng, 2 * SPAN.as_millis() as u64 / NUM_FAULTS as u64),
                    worker: rng.random_range(0..num_workers),
                    fault: fault(rng),
                })
                .collect(),
        }
    }
}

fn options(rng: &mut StdRng) -> Value {
    let share = *[0.0, 0.2, 1.0].choose(rng).unwrap();
    json!({
        "policy": Policy::all().choose(rng).unwrap().name(),
        "max_concurrent_requests": rng.random_range(2..=16),
        "queue_size": rng.random_range(0..=16),
        "queue_timeout_secs": rng.random_range(1..=5),
        "stream_stall_timeout_secs": rng.random_range(2..=5),
        "request_timeout_secs": 30,
        "health_check_interval_secs": rng.random_range(1..=5),
        "health_check_timeout_secs": 1,
        "health_check_generate": rng.random_bool(0.5),
        "cb_failure_threshold": rng.random_range(2..=5),
        "cb_success_threshold": rng.random_range(1..=2),
        "cb_timeout_duration_secs": 2,
        "retry_max_retries": rng.random_range(1..=4),
        "retry_budget_ratio": share,
        "retry_budget_min_per_second": rng.random_range(0..=2),
        "shutdown_grace_period_secs": 10,
    })
}

/// Prompts begin alike in families, and none is another's beginning.
fn client(rng: &mut StdRng, number: usize) -> Client {
    let family = rng.random_range(0..4);
    let opening = format!("family {family} ").repeat(rng.random_range(1..=4));
    let tail: String = (0..rng.random_range(1..=40))
        .map(|_| char::from(rng.random_range(b'a'..=b'z')))
        .collect();
    Client {
        starts: millis(rng, SPAN.as_millis() as u64),
        prompt: format!("{opening}request {number}: {tail}."),
        streams: rng.random_bool(0.5),
        patience: rng.random_bool(0.3).then(|| millis(rng, 3000)),
    }
}

fn fault(rng: &mut StdRng) -> Fault {
    match rng.random_range(0..16) {
        0..=2 => Fault::Die {
            is_other: rng.random_bool(0.7),
        },
        3..=4 => Fault::Partition,
        5 => Fault::Flap,
        6..=10 => Fault::Generate(Box::new(script(rng))),
        11..=12 => Fault::Say(health(rng)),
        13 => Fault::LoseEvents(rng.random_range(1..=3)),
        14 => [Fault::ForgetHistory, Fault::EndEvents]
            .into_iter()
            .nth(rng.random_range(0..2))
            .unwrap(),
        _ => [Fault::ClearCache, Fault::RestartCache]
            .into_iter()
            .nth(rng.random_range(0..2))
            .unwrap(),
    }
}

/// A healthy worker answers with the prompt, more or less slowly.
fn healthy(rng: &mut StdRng) -> Script {
    Script {
        first_token_delay: millis(rng, 300),
        token_delay: millis(rng, 30),
        heeds_aborts: rng.random_bool(0.8),
        ..Script::default()
    }
}

fn script(rng: &mut StdRng) -> Script {
    let messages = rng.random_range(0..10);
    let message = "a fault of the plan".to_owned();
    let codes = [
        Code::Unavailable,
        Code::ResourceExhausted,
        Code::Internal,
        Code::Unknown,
        Code::Cancelled,
    ];
    let code = *codes.choose(rng).unwrap();
    let outcome = match rng.random_range(0..12) {
        0 => Outcome::Refuse { code, message },
        1 => Outcome::FailAfter {
            messages,
            code,
            message,
        },
        2 => Outcome::AbortAfter {
            messages,
            status: *[500, 503].choose(rng).unwrap(),
            message,
        },
        3 => Outcome::HangBeforeHeaders,
        4 => Outcome::HangAfter { messages },
        5 => Outcome::EndAfter { messages },
        _ => Outcome::Complete,
    };
    let slowness = if rng.random_bool(0.2) { 20 } else { 1 };
    let healthy = healthy(rng);
    Script {
        outcome,
        first_token_delay: healthy.first_token_delay * slowness,
        ..healthy
    }
}

fn health(rng: &mut StdRng) -> HealthScript {
    match rng.random_range(0..8) {
        0 => HealthScript::NotReady("loading".to_owned()),
        1 => HealthScript::Unhealthy("by plan".to_owned()),
        2 => HealthScript::Slow(millis(rng, 3000)),
        3 => HealthScript::Silent,
        _ => HealthScript::Ready,
    }
}

fn millis(rng: &mut StdRng, most: u64) -> Duration {
    Duration::from_millis(rng.random_range(0..=most))
}
