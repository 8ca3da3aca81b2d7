//! A gateway, its workers and its clients under a plan, and what is to be found of them after it.

use std::time::Duration;

use futures::future::join_all;
use http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Value, json};
use smg_simulator::{HealthScript, Script, SimulatedEngine};

use crate::{
    common::{Answer, FIRST_START, MODEL, Rig, address_of, worker},
    plan::{Client, Fault, Plan},
};

/// A client that stays has its end after this: the request's own limit, and room for what comes around it.
const LONGEST: Duration = Duration::from_secs(45);

/// Workers that are well are back in service after this: connections that carry nothing are given up after 40 s.
const RECOVERY: Duration = Duration::from_secs(120);

/// Time in which what ended gives back what it held.
const SETTLING: Duration = Duration::from_secs(20);

const COMPLETIONS: &str = "/v1/completions";

/// What must not be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A client waited for nothing, or took a part for the whole.
    Lost,
    /// A client got tokens twice, or those of others.
    Doubled,
    /// Something is still counted although nothing runs.
    Leaked,
    /// The gateway or a worker does not come back.
    Stuck,
}

#[derive(Default)]
pub struct Tally {
    requests: usize,
    answered: usize,
    failed: usize,
    left: usize,
    pub findings: Vec<(Kind, String)>,
}

/// How a request ended for its client.
enum End {
    Answered,
    Failed,
    Left,
}

pub async fn run(plan: &Plan) -> Tally {
    let workers = (0..plan.num_workers).map(|_| worker().cache(16, 64).script(Script::default()));
    let mut rig = Rig::with_options(workers, &plan.options).await;
    let mut tally = Tally::default();
    let clients = join_all(plan.clients.iter().map(|client| ask(&rig, client)));
    let (ends, starts) = futures::join!(clients, trouble(&rig, plan));
    for end in ends {
        tally.count(end);
    }
    heal(&rig, &starts).await;
    tally.note(Kind::Stuck, recovered(&rig).await);
    tokio::time::sleep(SETTLING).await;
    tally.note(Kind::Leaked, given_back(&rig).await);
    rig.shutdown.drain.cancel();
    match tokio::time::timeout(RECOVERY, rig.ended()).await {
        Ok(Ok(())) if rig.tasks.is_empty() => {}
        Ok(Ok(())) => tally.note(Kind::Leaked, Err(format!("{} tasks", rig.tasks.len()))),
        Ok(Err(error)) => tally.note(Kind::Stuck, Err(error.to_string())),
        Err(_) => tally.note(Kind::Stuck, Err("the gateway does not end".to_owned())),
    }
    tally
}

// ---------------------------------------------------------------- clients

async fn ask(rig: &Rig, client: &Client) -> Result<End, (Kind, String)> {
    tokio::time::sleep(client.starts).await;
    let body = json!({
        "model": MODEL, "prompt": client.prompt, "max_tokens": 300, "stream": client.streams,
    });
    let limit = client.patience.unwrap_or(LONGEST);
    match tokio::time::timeout(limit, rig.post(COMPLETIONS, &body)).await {
        Ok(answer) if client.streams && answer.status == StatusCode::OK => judge_stream(client, &answer),
        Ok(answer) => judge_whole(client, &answer),
        Err(_) if client.patience.is_some() => Ok(End::Left),
        Err(_) => Err((
            Kind::Lost,
            format!("no end of {:?} within {LONGEST:?}", client.prompt),
        )),
    }
}

fn judge_whole(client: &Client, answer: &Answer) -> Result<End, (Kind, String)> {
    let body = answer.body_json();
    if answer.status != StatusCode::OK {
        let is_error = body["error"]["code"].is_string();
        let is_ours = matches!(answer.status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504);
        return if is_error && is_ours {
            Ok(End::Failed)
        } else {
            Err((Kind::Lost, format!("{} {body}", answer.status)))
        };
    }
    compare(
        client,
        body["choices"][0]["text"].as_str().unwrap_or_default(),
        true,
    )
}

fn judge_stream(client: &Client, answer: &Answer) -> Result<End, (Kind, String)> {
    let Some(events) = answer.text().strip_suffix("data: [DONE]\n\n") else {
        return Err((Kind::Lost, format!("a stream just ends: {:?}", answer.text())));
    };
    let (mut text, mut has_error) = (String::new(), false);
    for event in events.split_terminator("\n\n") {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        has_error |= event["error"].is_object();
        text.push_str(event["choices"][0]["text"].as_str().unwrap_or_default());
    }
    compare(client, &text, !has_error)
}

/// A worker that is well answers with the prompt.
fn compare(client: &Client, text: &str, is_whole: bool) -> Result<End, (Kind, String)> {
    let words = || format!("{text:?} to {:?}", client.prompt);
    match (client.prompt.strip_prefix(text), is_whole) {
        (Some(""), true) => Ok(End::Answered),
        (Some(_), false) => Ok(End::Failed),
        (Some(_), true) => Err((Kind::Lost, words())),
        (None, _) => Err((Kind::Doubled, words())),
    }
}

// ---------------------------------------------------------------- faults

/// How often the process of a worker was replaced, and what it is now.
#[derive(Clone, Copy, Default)]
struct Process {
    starts: i64,
    is_dead: bool,
    is_cut: bool,
}

/// Lets the faults happen; returns the state of the processes after them.
async fn trouble(rig: &Rig, plan: &Plan) -> Vec<Process> {
    let processes = Mutex::new(vec![Process::default(); plan.num_workers]);
    for step in &plan.faults {
        tokio::time::sleep(step.after).await;
        let (worker, engine) = (step.worker, &rig.engines[step.worker]);
        let mut process = processes.lock()[worker];
        match &step.fault {
            Fault::Die { is_other } if process.is_dead => back(rig, worker, &mut process, *is_other),
            Fault::Die { .. } => {
                kill(rig, worker).await;
                process.is_dead = true;
            }
            Fault::Partition if process.is_cut => {
                rig.network.rejoin(&address_of(worker));
                process.is_cut = false;
            }
            Fault::Partition => {
                rig.network.cut_off(&address_of(worker));
                process.is_cut = true;
            }
            Fault::Flap => engine.drop_connections(),
            Fault::Generate(script) => engine.set_script(Script::clone(script)),
            Fault::Say(health) => engine.set_health(health.clone()),
            other => disturb_events(engine, other),
        }
        processes.lock()[worker] = process;
    }
    processes.into_inner()
}

fn disturb_events(engine: &SimulatedEngine, fault: &Fault) {
    match fault {
        Fault::LoseEvents(count) => engine.lose_kv_events(*count),
        Fault::ForgetHistory => engine.forget_kv_history(),
        Fault::EndEvents => engine.end_kv_streams(),
        Fault::ClearCache => engine.clear_cache(),
        _ => engine.restart_cache(),
    }
}

/// A connection that is opened in the same moment outlives the first cut.
async fn kill(rig: &Rig, worker: usize) {
    for _ in 0..10 {
        let died = tokio::time::timeout(Duration::from_millis(100), rig.kill(worker)).await;
        if died.is_ok() {
            return;
        }
    }
    panic!("worker {worker} does not die");
}

fn back(rig: &Rig, worker: usize, process: &mut Process, is_other: bool) {
    if is_other {
        process.starts += 1;
        rig.engines[worker].set_start_time(FIRST_START + process.starts);
        rig.engines[worker].restart_cache();
    }
    rig.revive(worker);
    process.is_dead = false;
}

async fn heal(rig: &Rig, processes: &[Process]) {
    for (worker, process) in processes.iter().enumerate() {
        rig.network.rejoin(&address_of(worker));
        rig.engines[worker].set_health(HealthScript::Ready);
        rig.engines[worker].set_script(Script::default());
        if process.is_dead {
            back(rig, worker, &mut process.clone(), true);
        }
    }
}

// ---------------------------------------------------------------- afterwards

/// All workers are in service again, and answer what they are asked.
async fn recovered(rig: &Rig) -> Result<(), String> {
    let num_workers = rig.engines.len();
    let ready = tokio::time::timeout(RECOVERY, rig.until_ready(num_workers)).await;
    if ready.is_err() {
        return Err(format!("workers stay away: {}", rig.get("/workers").await.text()));
    }
    let body = json!({"model": MODEL, "prompt": "all well?", "max_tokens": 300});
    let answers = async {
        let mut in_a_row = 0;
        while in_a_row < 4 * num_workers {
            if rig.post(COMPLETIONS, &body).await.status == StatusCode::OK {
                in_a_row += 1;
            } else {
                in_a_row = 0;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
    };
    let answered = tokio::time::timeout(RECOVERY, answers).await;
    answered.map_err(|_| "workers that are well do not answer".to_owned())
}

/// Nothing is counted any more, here and there.
async fn given_back(rig: &Rig) -> Result<(), String> {
    let workers = rig.get("/workers").await.body_json();
    for view in workers["workers"].as_array().unwrap() {
        if (&view["load"], &view["pending_tokens"]) != (&json!(0), &json!(0)) {
            return Err(format!("load of a worker: {view}"));
        }
    }
    for (worker, engine) in rig.engines.iter().enumerate() {
        if engine.num_running() > 0 {
            return Err(format!(
                "{} generations run on worker {worker}",
                engine.num_running()
            ));
        }
    }
    let metrics = rig.get("/metrics").await;
    for name in ["smg_admission_inflight", "smg_admission_queue_depth"] {
        let mut held = metrics.text().lines().filter(|line| line.starts_with(name));
        if let Some(line) = held.find(|line| !line.ends_with(" 0")) {
            return Err(format!("permits: {line}"));
        }
    }
    Ok(())
}

// === impl Kind ===

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Doubled => "doubled",
            Self::Leaked => "leaked",
            Self::Stuck => "stuck",
        }
    }
}

// === impl Tally ===

impl Tally {
    pub fn of(kind: Kind, words: String) -> Self {
        Self {
            findings: vec![(kind, words)],
            ..Self::default()
        }
    }

    fn count(&mut self, end: Result<End, (Kind, String)>) {
        self.requests += 1;
        match end {
            Ok(End::Answered) => self.answered += 1,
            Ok(End::Failed) => self.failed += 1,
            Ok(End::Left) => self.left += 1,
            Err(finding) => self.findings.push(finding),
        }
    }

    fn note(&mut self, kind: Kind, found: Result<(), String>) {
        if let Err(words) = found {
            self.findings.push((kind, words));
        }
    }

    pub fn add(&mut self, other: Self) {
        self.requests += other.requests;
        self.answered += other.answered;
        self.failed += other.failed;
        self.left += other.left;
        self.findings.extend(other.findings);
    }

    pub fn has_all_ends(&self) -> bool {
        self.answered > 0 && self.failed > 0 && self.left > 0
    }

    pub fn words(&self) -> String {
        let count = |kind| self.findings.iter().filter(|(found, _)| *found == kind).count();
        format!(
            "{} requests: {} answered, {} told an error, {} left by their clients; lost {}, doubled {}, leaked permits {}, \
             stuck {}",
            self.requests,
            self.answered,
            self.failed,
            self.left,
            count(Kind::Lost),
            count(Kind::Doubled),
            count(Kind::Leaked),
            count(Kind::Stuck),
        )
    }
}
