//! Engines and the gateways before them. Gateways choose by the product's own code: its set of workers, its policies,
//! its indexes of what is cached.

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use rand::SeedableRng;
use rand::rngs::StdRng;
use smg_kv_index::{ApproximateIndex, KvEvent, KvIndex, PrefixLookup, PromptKeys, SENT_PAGE_TOKENS, Target};
use smg_routing::{
    EXPECTED_OUTPUT_TOKENS, LoadGuard, LoadReport, Outcome, Probe, Query, Role, RouteRequest, WorkerId,
    WorkerInfo, WorkerParams, WorkerSet, prefix_key, routing_key,
};

use crate::chooser::{Chooser, UPSTREAM_PAGE_TOKENS};
use crate::content::mix;
use crate::engine::{Engine, EngineLoad, Job};
use crate::error::SimulateError;
use crate::params::Params;
use crate::trace::TraceRequest;

/// Tokens that `prefix_hash` looks at.
const PREFIX_TOKENS: usize = 256;
/// Enough for any trace: bounds of memory are not what is tried here.
const INDEX_BYTES: usize = 8 << 30;

pub(crate) struct Fleet {
    pub engines: Vec<Engine>,
    gateways: Vec<Gateway>,
    /// What engines told: the same in every gateway at every moment, as all hear it after the same time.
    told: Option<KvIndex>,
    ids: Vec<WorkerId>,
    page_size: NonZeroU32,
    epoch: Instant,
}

struct Gateway {
    set: WorkerSet,
    chooser: Chooser,
    sent: ApproximateIndex,
    rng: StdRng,
}

/// Where a request went.
pub(crate) struct Routed {
    pub engine: usize,
    pub guard: LoadGuard,
    pub job: Job,
}

impl Fleet {
    pub fn new(params: &Params, policy: &str, epoch: Instant) -> Result<Self, SimulateError> {
        let gateways = (0..params.num_gateways as u64)
            .map(|number| Gateway::new(params, policy, mix(params.seed, number)))
            .collect::<Result<Vec<_>, _>>()?;
        let ids: Vec<_> = gateways[0].set.list().iter().map(|worker| worker.id()).collect();
        let fleet = Self {
            engines: (0..params.num_workers)
                .map(|_| Engine::new(params.engine))
                .collect(),
            told: params.event_delay_ms.map(|_| KvIndex::new(INDEX_BYTES)),
            ids,
            page_size: params.engine.page_size,
            epoch,
            gateways,
        };
        for gateway in &fleet.gateways {
            for &id in &fleet.ids {
                gateway.sent.set_capacity(target(id), params.engine.kv_tokens);
            }
        }
        Ok(fleet)
    }

    /// Lets a gateway choose, and hands the request to the engine.
    pub fn route(&mut self, id: usize, gateway: usize, request: TraceRequest, now: u64) -> Option<Routed> {
        let content = request.content;
        let prompt_len = content.prompt_len();
        let prompt = content.prompt_keys();
        let job = Job {
            id,
            keys: content.page_keys(&prompt, self.page_size),
            content,
        };
        let Self {
            engines,
            gateways,
            told,
            ids,
            epoch,
            ..
        } = self;
        let Gateway {
            set,
            chooser,
            sent,
            rng,
        } = &mut gateways[gateway];
        chooser.show(
            || prompt.paged(UPSTREAM_PAGE_TOKENS),
            || engines.iter().map(|engine| engine.foresee(&job, now)).collect(),
        );
        let cached = match (chooser.asks_indexes(), &told) {
            (false, _) => Vec::new(),
            (true, Some(told)) => held(told, &prompt),
            (true, None) => held(sent, &prompt),
        };
        let opening = job.content.tokens(0, prompt_len.min(PREFIX_TOKENS));
        let request = RouteRequest {
            routing_key: request.session.as_deref().map(routing_key),
            prefix_key: prefix_key(&opening, PREFIX_TOKENS, ""),
            ..RouteRequest::new(
                *epoch + Duration::from_nanos(now),
                prompt_len,
                EXPECTED_OUTPUT_TOKENS,
            )
        };
        let query = Query {
            model: None,
            role: Role::Regular,
            request,
            cached: &cached,
            avoid: &[],
            only: None,
        };
        let guard = set.select(&query, chooser.policy(), rng).ok()?;
        let worker = guard.worker().id();
        if chooser.asks_indexes() && told.is_none() {
            sent.insert(target(worker), &prompt);
        }
        let engine = ids.iter().position(|id| *id == worker)?;
        Some(Routed { engine, guard, job })
    }

    /// Every gateway hears of an engine.
    pub fn hear(&self, engine: usize, events: &[KvEvent], load: EngineLoad, now: u64) {
        let id = self.ids[engine];
        if let Some(told) = &self.told {
            told.apply(target(id), events);
        }
        let report = LoadReport {
            at: self.instant(now),
            queued_tokens: load.queued_tokens,
            requests: load.num_requests,
            kv_usage: load.kv_usage,
        };
        for gateway in &self.gateways {
            gateway.set.list()[engine].report(report);
        }
    }

    pub fn settle(&self, guard: &mut LoadGuard, now: u64) {
        guard.settle(self.instant(now));
    }

    pub fn end(&self, mut guard: LoadGuard, now: u64) {
        guard.record(Outcome::Answered, self.instant(now));
    }

    pub fn num_gateways(&self) -> usize {
        self.gateways.len()
    }

    fn instant(&self, now: u64) -> Instant {
        self.epoch + Duration::from_nanos(now)
    }
}

impl Gateway {
    fn new(params: &Params, policy: &str, seed: u64) -> Result<Self, SimulateError> {
        let set = WorkerSet::new(WorkerParams::default());
        for number in 0..params.num_workers {
            // Each URL is added once, so none is refused.
            if let Ok(worker) = set.add(&format!("grpc://worker-{number}:30000"), WorkerInfo::default()) {
                worker.observe(Probe::Healthy);
            }
        }
        Ok(Self {
            set,
            chooser: Chooser::new(policy, params.num_workers)?,
            sent: ApproximateIndex::new(SENT_PAGE_TOKENS, INDEX_BYTES),
            rng: StdRng::seed_from_u64(seed),
        })
    }
}

fn held(index: &dyn PrefixLookup, prompt: &PromptKeys) -> Vec<(WorkerId, usize)> {
    let found = index.lookup(prompt);
    let holder =
        |found: &smg_kv_index::PrefixMatch| (WorkerId::new(found.target.worker), found.device_tokens);
    found.iter().map(holder).collect()
}

fn target(id: WorkerId) -> Target {
    Target {
        worker: id.number(),
        rank: 0,
    }
}
