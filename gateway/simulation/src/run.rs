//! The clock: events in the order of their time, those of one moment in the order in which they were foreseen.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::hash::BuildHasherDefault;
use std::time::Instant;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use smg_kv_index::{KvEvent, PageKey};
use smg_routing::LoadGuard;

use crate::cache::KeyHasher;
use crate::content::{mix, reusable_pages};
use crate::engine::{EngineLoad, Progress};
use crate::error::SimulateError;
use crate::fleet::Fleet;
use crate::outcome::{Outcome, Served};
use crate::params::Params;
use crate::trace::{Requests, Trace, TraceRequest};

/// Time between two reports of an engine that has nothing else to tell, as of the product's engine.
const HEARTBEAT: u64 = 1_000_000_000;

/// Told how far a policy has come: its name, requests that have ended, and how many there are.
pub type Watch<'a> = &'a mut dyn FnMut(&str, usize, usize);

/// Tries each policy on the trace. `epoch` is any moment: policies are shown times, and only differences count.
pub fn simulate(
    params: &Params,
    trace: &Trace,
    epoch: Instant,
    watch: Watch<'_>,
) -> Result<Vec<Outcome>, SimulateError> {
    params.check()?;
    let run = |policy: &String| Run::new(params, policy, trace, epoch)?.finish(watch);
    params.policies.iter().map(run).collect()
}

/// The share of all prompt tokens that one cache without bounds could have had.
pub fn possible_hit_rate(params: &Params, trace: &Trace) -> Result<f64, SimulateError> {
    let page_size = params.engine.page_size;
    let mut seen: HashSet<PageKey, BuildHasherDefault<KeyHasher>> = HashSet::default();
    let (mut cached, mut all) = (0, 0);
    for request in trace.requests()? {
        let content = request?.content;
        let keys = content.page_keys(&content.prompt_keys(), page_size);
        let reusable = &keys[..reusable_pages(content.prompt_len(), page_size.get() as usize)];
        cached += reusable.iter().take_while(|key| seen.contains(*key)).count() * page_size.get() as usize;
        all += content.prompt_len();
        seen.extend(keys);
    }
    Ok(cached as f64 / all as f64)
}

enum Event {
    /// The next request of the trace.
    Arrival(Box<TraceRequest>),
    /// An engine's pass ends.
    PassEnd(usize),
    /// What an engine told reaches the gateways.
    Told(usize, Vec<KvEvent>, EngineLoad),
    /// Engines that told nothing for long tell how loaded they are.
    Heartbeat,
}

struct Run<'a> {
    params: &'a Params,
    policy: &'a str,
    num_requests: usize,
    fleet: Fleet,
    requests: Requests,
    rng: StdRng,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    events: BTreeMap<u64, Event>,
    num_events: u64,
    flights: BTreeMap<usize, Flight>,
    num_arrived: usize,
    /// By engine: when it told something last.
    told: Vec<u64>,
    outcome: Outcome,
}

/// A request that has arrived and not ended.
struct Flight {
    guard: LoadGuard,
    served: Served,
}

impl<'a> Run<'a> {
    fn new(
        params: &'a Params,
        policy: &'a str,
        trace: &Trace,
        epoch: Instant,
    ) -> Result<Self, SimulateError> {
        Ok(Self {
            params,
            policy,
            num_requests: trace.num_requests(),
            fleet: Fleet::new(params, policy, epoch)?,
            requests: trace.requests()?,
            rng: StdRng::seed_from_u64(mix(params.seed, u64::MAX)),
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            num_events: 0,
            flights: BTreeMap::new(),
            num_arrived: 0,
            told: vec![0; params.num_workers],
            outcome: Outcome::new(policy),
        })
    }

    fn finish(mut self, watch: Watch<'_>) -> Result<Outcome, SimulateError> {
        self.await_next()?;
        self.at(HEARTBEAT, Event::Heartbeat);
        while let Some(Reverse((now, number))) = self.queue.pop() {
            match self.events.remove(&number) {
                Some(Event::Arrival(request)) => {
                    self.await_next()?;
                    self.arrive(*request, now);
                }
                Some(Event::PassEnd(engine)) => self.end_pass(engine, now),
                Some(Event::Told(engine, events, load)) => self.fleet.hear(engine, &events, load, now),
                Some(Event::Heartbeat) => self.beat(now),
                None => {}
            }
            if self.outcome.num_ended() + self.outcome.num_refused() == self.num_requests {
                break;
            }
            if number % 4096 == 0 {
                watch(self.policy, self.outcome.num_ended(), self.num_requests);
            }
        }
        watch(self.policy, self.outcome.num_ended(), self.num_requests);
        let busy = self.fleet.engines.iter().map(|engine| engine.busy());
        self.outcome.set_busy(busy.collect());
        Ok(self.outcome)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.num_events += 1;
        self.events.insert(self.num_events, event);
        self.queue.push(Reverse((time, self.num_events)));
    }

    fn await_next(&mut self) -> Result<(), SimulateError> {
        if let Some(request) = self.requests.next() {
            let request = request?;
            self.at(request.arrival, Event::Arrival(Box::new(request)));
        }
        Ok(())
    }

    fn arrive(&mut self, request: TraceRequest, now: u64) {
        let id = self.num_arrived;
        self.num_arrived += 1;
        let served = Served::new(now, &request.content);
        let gateway = self.rng.random_range(0..self.fleet.num_gateways());
        let Some(routed) = self.fleet.route(id, gateway, request, now) else {
            self.outcome.refuse();
            return;
        };
        self.flights.insert(
            id,
            Flight {
                guard: routed.guard,
                served,
            },
        );
        self.fleet.engines[routed.engine].enqueue(routed.job);
        self.begin_pass(routed.engine, now);
    }

    fn begin_pass(&mut self, engine: usize, now: u64) {
        let mut progress = Vec::new();
        if let Some(end) = self.fleet.engines[engine].begin(now, &mut progress) {
            self.at(end, Event::PassEnd(engine));
        }
        self.take_in(progress, now);
    }

    fn end_pass(&mut self, engine: usize, now: u64) {
        let mut progress = Vec::new();
        self.fleet.engines[engine].end(&mut progress);
        self.take_in(progress, now);
        let events = self.fleet.engines[engine].take_events();
        if !events.is_empty() {
            self.tell(engine, events, now);
        }
        self.begin_pass(engine, now);
    }

    fn beat(&mut self, now: u64) {
        for engine in 0..self.params.num_workers {
            if now - self.told[engine] >= HEARTBEAT {
                self.tell(engine, Vec::new(), now);
            }
        }
        self.at(now + HEARTBEAT, Event::Heartbeat);
    }

    fn tell(&mut self, engine: usize, events: Vec<KvEvent>, now: u64) {
        let Some(delay) = self.params.event_delay_ms else {
            return;
        };
        self.told[engine] = now;
        let load = self.fleet.engines[engine].load();
        self.at(now + (delay * 1e6) as u64, Event::Told(engine, events, load));
    }

    fn take_in(&mut self, progress: Vec<Progress>, now: u64) {
        for step in progress {
            match step {
                Progress::Began { id, cached } => {
                    if let Some(flight) = self.flights.get_mut(&id) {
                        flight.served.begin(now, cached);
                        self.fleet.settle(&mut flight.guard, now);
                    }
                }
                Progress::Ended { id } => {
                    if let Some(flight) = self.flights.remove(&id) {
                        self.outcome.end(&flight.served, now);
                        self.fleet.end(flight.guard, now);
                    }
                }
                Progress::Refused { id } => {
                    if self.flights.remove(&id).is_some() {
                        self.outcome.refuse();
                    }
                }
            }
        }
    }
}
