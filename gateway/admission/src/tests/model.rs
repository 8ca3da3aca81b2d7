//! Random requests, ends and pauses: the gate must decide as a model with two plain lists does.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use proptest::prelude::*;

use crate::{Ask, Class, Entered, Gate, GateParams, Left, Limits, Reason, TenantId, Ticket};

const NUM_TENANTS: u128 = 4;
const PATIENCE: Duration = Duration::from_secs(8);

#[derive(Debug, Clone)]
enum Step {
    Enter {
        tenant: u128,
        class: usize,
        tokens: u64,
    },
    /// Of those that run or wait, the one at this position.
    Leave {
        position: usize,
        used: Option<u64>,
    },
    Pause {
        millis: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let enter = (0..NUM_TENANTS, 0..Class::ALL.len(), 1..50_u64);
    let enter = enter.prop_map(|(tenant, class, tokens)| Step::Enter {
        tenant,
        class,
        tokens,
    });
    let leave = (any::<usize>(), prop::option::of(0..100_u64));
    let leave = leave.prop_map(|(position, used)| Step::Leave { position, used });
    let pause = (0..4000_u64).prop_map(|millis| Step::Pause { millis });
    prop::collection::vec(prop_oneof![5 => enter, 4 => leave, 2 => pause], 1..200)
}

fn params() -> impl Strategy<Value = GateParams> {
    let max_running = prop::option::weighted(0.9, 1..5_usize);
    let limits = (prop::option::of(1..4_usize), 1..5_u32);
    let limits = limits.prop_map(|(max_running, weight)| Limits {
        max_running,
        weight,
        ..Limits::default()
    });
    let of_tenants = prop::collection::hash_map((0..NUM_TENANTS).prop_map(TenantId), limits, 0..4);
    (max_running, 0..8_usize, of_tenants).prop_map(|(max_running, max_waiting, of_tenants)| GateParams {
        max_running,
        max_waiting,
        patience: PATIENCE,
        of_tenants,
        ..GateParams::default()
    })
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    ticket: Ticket,
    ask: Ask,
    since: Instant,
}

struct Model {
    max_running: usize,
    max_waiting: usize,
    of_tenants: HashMap<TenantId, Limits>,
    waiting: Vec<Entry>,
    running: Vec<Entry>,
    tags: BTreeMap<TenantId, u128>,
    clock: u128,
}

impl Model {
    fn new(params: &GateParams) -> Self {
        Self {
            max_running: params.max_running.unwrap_or(usize::MAX),
            max_waiting: params.max_waiting,
            of_tenants: params.of_tenants.clone(),
            waiting: Vec::new(),
            running: Vec::new(),
            tags: BTreeMap::new(),
            clock: 0,
        }
    }

    fn limits(&self, tenant: TenantId) -> Limits {
        self.of_tenants.get(&tenant).copied().unwrap_or_default()
    }

    fn may_start(&self, tenant: TenantId) -> bool {
        let num_running = self
            .running
            .iter()
            .filter(|entry| entry.ask.tenant == tenant)
            .count();
        let limit = self.limits(tenant).max_running.unwrap_or(usize::MAX);
        self.running.len() < self.max_running && num_running < limit
    }

    fn class(entry: &Entry, now: Instant) -> usize {
        let rises = (now - entry.since).as_nanos() / (PATIENCE / 4).as_nanos();
        (entry.ask.class as usize).saturating_sub(rises as usize)
    }

    fn tag(&self, tenant: TenantId) -> u128 {
        self.tags.get(&tenant).copied().unwrap_or(0)
    }

    fn stride(&self, tenant: TenantId, tokens: u64) -> u128 {
        (u128::from(tokens) << 32) / u128::from(self.limits(tenant).weight)
    }

    fn next(&self, now: Instant) -> Option<Entry> {
        let candidates = self
            .waiting
            .iter()
            .filter(|entry| self.may_start(entry.ask.tenant));
        let order = |entry: &&Entry| {
            let tenant = entry.ask.tenant;
            (Self::class(entry, now), self.tag(tenant), tenant, entry.ticket)
        };
        candidates.min_by_key(order).copied()
    }

    fn start(&mut self, entry: Entry, now: Instant) {
        let tenant = entry.ask.tenant;
        self.clock = self.clock.max(self.tag(tenant));
        let tag = self.clock + self.stride(tenant, entry.ask.tokens);
        self.tags.insert(tenant, tag);
        self.running.push(Entry { since: now, ..entry });
    }

    fn line(&self, class: usize, tenant: TenantId, now: Instant) -> Vec<Entry> {
        let is_in = |entry: &&Entry| Self::class(entry, now) == class && entry.ask.tenant == tenant;
        self.waiting.iter().filter(is_in).copied().collect()
    }

    fn victim(&self, ask: &Ask, now: Instant) -> Option<Ticket> {
        let lowest = self.waiting.iter().map(|entry| Self::class(entry, now)).max()?;
        let tenants = (0..NUM_TENANTS).map(TenantId);
        let longest = tenants.max_by_key(|tenant| (self.line(lowest, *tenant, now).len(), *tenant))?;
        let line = self.line(lowest, longest, now);
        let own = self.line(ask.class as usize, ask.tenant, now).len();
        let asked = ask.class as usize;
        let gives_way = asked < lowest || asked == lowest && line.len() >= own + 2;
        gives_way
            .then(|| line.iter().map(|entry| entry.ticket).max())
            .flatten()
    }

    /// The same outcome as the gate's, with its ticket.
    fn enter(&mut self, ask: Ask, outcome: &Result<Entered, Reason>, now: Instant) {
        let runs = self.may_start(ask.tenant) && self.next(now).is_none();
        let expected = if runs {
            Ok((true, None))
        } else if self.waiting.len() < self.max_waiting {
            Ok((false, None))
        } else {
            self.victim(&ask, now)
                .map(|victim| (false, Some(victim)))
                .ok_or(())
        };
        let (found, ticket) = match outcome {
            Ok(Entered::Running(ticket)) => (Ok((true, None)), Some(*ticket)),
            Ok(Entered::Waiting { ticket, displaced }) => (Ok((false, *displaced)), Some(*ticket)),
            Err(_) => (Err(()), None),
        };
        assert_eq!(found, expected);
        let Some(ticket) = ticket else { return };
        if let Ok((_, Some(displaced))) = found {
            self.waiting.retain(|entry| entry.ticket != displaced);
        }
        let is_idle = !self.waiting.iter().any(|entry| entry.ask.tenant == ask.tenant);
        if is_idle {
            let tag = self.tag(ask.tenant).max(self.clock);
            self.tags.insert(ask.tenant, tag);
        }
        let entry = Entry {
            ticket,
            ask,
            since: now,
        };
        if runs {
            self.start(entry, now);
        } else {
            self.waiting.push(entry);
        }
    }

    fn leave(&mut self, ticket: Ticket, used: Option<u64>) -> Left {
        let is_it = |entry: &Entry| entry.ticket == ticket;
        if let Some(at) = self.waiting.iter().position(is_it) {
            self.waiting.remove(at);
            return Left::Waiting;
        }
        let at = self.running.iter().position(is_it).unwrap();
        let run = self.running.remove(at);
        if let Some(used) = used {
            let tenant = run.ask.tenant;
            let tag = self.tag(tenant) + self.stride(tenant, used);
            self.tags
                .insert(tenant, tag.saturating_sub(self.stride(tenant, run.ask.tokens)));
        }
        Left::Running
    }

    fn grant(&mut self, now: Instant) -> Option<Ticket> {
        let entry = self.next(now)?;
        self.waiting.retain(|other| other.ticket != entry.ticket);
        self.start(entry, now);
        Some(entry.ticket)
    }
}

struct Pair {
    gate: Gate,
    model: Model,
    now: Instant,
}

impl Pair {
    fn new(params: GateParams) -> Self {
        let now = Instant::now();
        Self {
            model: Model::new(&params),
            gate: Gate::new(params, now),
            now,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Enter {
                tenant,
                class,
                tokens,
            } => {
                let class = Class::ALL[class];
                let ask = Ask {
                    tenant: TenantId(tenant),
                    class,
                    tokens,
                };
                let outcome = self.gate.enter(ask, self.now).map_err(|refusal| refusal.reason);
                self.model.enter(ask, &outcome, self.now);
            }
            Step::Leave { position, used } => {
                let live = self.model.running.iter().chain(&self.model.waiting);
                let live: Vec<Ticket> = live.map(|entry| entry.ticket).collect();
                if live.is_empty() {
                    return;
                }
                self.leave(live[position % live.len()], used);
            }
            Step::Pause { millis } => self.now += Duration::from_millis(millis),
        }
        self.let_in();
    }

    fn leave(&mut self, ticket: Ticket, used: Option<u64>) {
        let left = self.gate.leave(ticket, used, self.now);
        assert_eq!(left, self.model.leave(ticket, used));
        assert_eq!(self.gate.leave(ticket, used, self.now), Left::Gone);
    }

    fn let_in(&mut self) {
        loop {
            let granted = self.gate.grant(self.now);
            assert_eq!(granted, self.model.grant(self.now));
            if granted.is_none() {
                break;
            }
        }
        self.assert_counts();
    }

    fn assert_counts(&self) {
        let (gate, model) = (&self.gate, &self.model);
        assert_eq!(gate.num_running(), model.running.len());
        assert_eq!(gate.num_waiting(), model.waiting.len());
        for class in Class::ALL {
            let asked = model.waiting.iter().filter(|entry| entry.ask.class == class);
            assert_eq!(gate.depth(class), asked.count());
        }
        assert!(model.running.len() <= model.max_running);
        assert!(model.waiting.len() <= model.max_waiting);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_gate_decides_as_the_model_and_is_empty_in_the_end(params in params(), steps in steps()) {
        let mut pair = Pair::new(params);
        for step in &steps {
            pair.step(step);
        }
        // Whatever waits comes to run once those before it have ended.
        while let Some(entry) = pair.model.running.first().copied() {
            pair.leave(entry.ticket, None);
            pair.let_in();
        }
        prop_assert_eq!((pair.gate.num_running(), pair.gate.num_waiting()), (0, 0));
    }
}
