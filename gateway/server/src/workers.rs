//! The workers as the gateway sees them: their clients, what they serve, and the choice among them.

mod affinity;
mod alarm;
mod departure;
mod explain;
mod follow;
mod given;
mod load;
mod policies;
mod prefixes;
mod proof;
mod roster;
mod routable;
mod sessions;
mod state_file;
mod trial;
mod watch;

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use parking_lot::{Mutex, RwLock};
use smg_api::{ApiError, clip};
use smg_engine_client::{EngineClient, ModelInfo, PushedLoad};
use smg_routing::{LoadReport, SelectError, Worker, WorkerId, WorkerInfo, WorkerSet, WorkerState};
use smg_tokenizer::Tokenizer;
use tokio::time::Instant;
use tokio_util::task::task_tracker::TaskTrackerToken;

pub use self::{
    affinity::Affinity,
    alarm::{Alarm, AlarmedConnector},
    explain::Standing,
    given::{Given, POLICY_LABEL, WrongField},
    load::TokenizerSource,
    policies::{Policies, PolicyRules, ServedModel},
    prefixes::{FeedState, Held, Prefixes},
    proof::prove,
    roster::{Roster, RosterError},
    routable::{Routable, cache_namespace},
    sessions::{SessionUse, Sessions},
    state_file::{StateFile, StateFileError},
    trial::Unchosen,
    watch::ProbeTimes,
};
use self::{
    departure::Departure,
    trial::{Trials, WakeOnDrop},
};
pub(crate) use self::{
    roster::Tools,
    watch::{Knowledge, Watch},
};
use crate::error::{Failure, RETRY_AFTER};

/// All workers, and the policies that choose among them.
pub struct Fleet {
    pub set: WorkerSet,
    pub prefixes: Prefixes,
    pub policies: Policies,
    pub sessions: Sessions,
    /// Other names of models.
    aliases: ArcSwap<BTreeMap<String, String>>,
    members: RwLock<HashMap<WorkerId, Arc<Member>>>,
    trials: Arc<Trials>,
    /// Held while a tokenizer is built, so that workers of one model end up sharing it.
    building: tokio::sync::Mutex<()>,
}

/// One worker: its routing entry, its client, and what it told about itself.
pub struct Member {
    pub worker: Arc<Worker>,
    pub client: EngineClient,
    served: ArcSwapOption<Served>,
    /// What it is doing, in words, for people.
    progress: ArcSwap<String>,
    /// Rings when a connection to it ended: it is probed at once.
    alarm: Arc<Alarm>,
    /// What it told of itself, and what its operator says over it.
    description: Mutex<(WorkerInfo, Given)>,
    pub departure: Departure,
}

/// What a ready worker serves.
pub struct Served {
    pub model: Arc<str>,
    pub info: ModelInfo,
    pub tokenizer: Tokenizer,
    /// Seconds since the epoch when this was learned.
    pub since: u64,
    /// Whether its constraints are compiled by a backend whose limits `smg_api` knows.
    has_own_grammar_backend: bool,
    fingerprint: u64,
}

/// A worker that was chosen for one prompt; it counts as its load until dropped.
pub struct Chosen {
    pub guard: smg_routing::LoadGuard,
    pub member: Arc<Member>,
    /// The name of the policy that chose.
    pub policy: &'static str,
    /// Prompt tokens that the worker is believed to hold.
    pub predicted_cached: usize,
    /// It told so itself.
    pub is_exact: bool,
    trials: Arc<Trials>,
    /// Where the request tries a half-open breaker. NOTE: below `guard`, which must be given back before anybody is
    /// woken.
    _wake: Option<WakeOnDrop>,
    /// NOTE: below `guard` as well: whoever takes the worker out waits for this.
    _running: TaskTrackerToken,
}

// === impl Fleet ===

impl Fleet {
    pub fn new(set: WorkerSet, policies: Policies, prefixes: Prefixes) -> Self {
        Self {
            set,
            prefixes,
            policies,
            sessions: Sessions::default(),
            aliases: ArcSwap::default(),
            members: RwLock::default(),
            trials: Arc::default(),
            building: tokio::sync::Mutex::default(),
        }
    }

    /// Lets models be asked for by other names: model by alias.
    pub fn set_aliases(&self, aliases: BTreeMap<String, String>) {
        self.aliases.store(Arc::new(aliases));
    }

    /// The aliases that stand for a model.
    pub fn aliases_of(&self, model: &str) -> Vec<String> {
        let aliases = self.aliases.load();
        let of_model = aliases
            .iter()
            .filter(|(alias, target)| *target == model && !self.is_served(alias));
        of_model.map(|(alias, _)| alias.clone()).collect()
    }

    /// The model that a name stands for. A worker's own name for its model goes before an alias.
    fn model_of(&self, name: &str) -> String {
        let aliases = self.aliases.load();
        match aliases.get(name) {
            Some(model) if !self.is_served(name) => model.clone(),
            _ => name.to_owned(),
        }
    }

    fn is_served(&self, model: &str) -> bool {
        self.members().iter().any(|m| m.worker.info().serves(model))
    }

    /// What the policy `prefix_hash` goes by; `namespace` separates prompts whose caches are apart.
    pub fn prefix_key(&self, tokens: &[u32], namespace: &str) -> Option<u64> {
        smg_routing::prefix_key(tokens, self.policies.prefix_token_count(), namespace)
    }

    pub(crate) fn add(
        &self,
        url: &str,
        client: EngineClient,
        alarm: Arc<Alarm>,
    ) -> Result<Arc<Member>, smg_routing::AddWorkerError> {
        let worker = self.set.add(url, WorkerInfo::default())?;
        let member = Arc::new(Member {
            worker: worker.clone(),
            client,
            served: ArcSwapOption::empty(),
            progress: ArcSwap::from_pointee("connecting".to_owned()),
            alarm,
            description: Mutex::default(),
            departure: Departure::default(),
        });
        self.members.write().insert(worker.id(), member.clone());
        Ok(member)
    }

    /// Forgets a worker and all that is known of it. Its task has ended.
    pub(crate) fn remove(&self, member: &Member) {
        let id = member.worker.id();
        self.set.remove(id);
        // Before what it was sent is forgotten: `choose` looks here after it has noted more.
        self.members.write().remove(&id);
        self.prefixes.forget_sent(id);
        self.sessions.lose(id);
        self.update_policies();
        self.trials.wake();
    }

    /// Gives every model that is served now its policy.
    pub(crate) fn update_policies(&self) {
        if let Err(error) = self.policies.follow(|| self.served_models()) {
            tracing::error!(%error, "the policies stay as they are");
        }
    }

    /// Every model once; of its workers the first one's label counts.
    pub(crate) fn served_models(&self) -> Vec<ServedModel> {
        let mut models: BTreeMap<String, Option<String>> = BTreeMap::new();
        for worker in self.set.list().iter() {
            let info = worker.info();
            if let Some(model) = &info.model {
                let label = models.entry(model.clone()).or_default();
                if label.is_none() {
                    *label = info.labels.get(POLICY_LABEL).cloned();
                }
            }
        }
        let models = models.into_iter();
        models.map(|(name, label)| ServedModel { name, label }).collect()
    }

    /// All workers in the order of their registration.
    pub fn members(&self) -> Vec<Arc<Member>> {
        let members = self.members.read();
        self.set
            .list()
            .iter()
            .filter_map(|worker| members.get(&worker.id()).cloned())
            .collect()
    }

    pub fn ready(&self) -> Vec<Arc<Member>> {
        let mut members = self.members();
        members.retain(|member| member.worker.state() == WorkerState::Ready);
        members
    }

    /// Any ready worker, the first registered one.
    pub fn first_ready(&self) -> Result<Arc<Member>, Failure> {
        self.ready()
            .into_iter()
            .next()
            .ok_or_else(|| no_ready_worker(None))
    }

    /// What is served under `model`. `None` means the only model there is.
    pub fn served(&self, model: Option<&str>) -> Result<Arc<Served>, Failure> {
        let members = self.members();
        let meant = model.map(|name| self.model_of(name));
        let model = meant.as_deref();
        let matches = |info: &WorkerInfo| model.is_none_or(|model| info.serves(model));
        let known: Vec<&Arc<Member>> = members
            .iter()
            .filter(|m| m.served.load().is_some() && matches(&m.worker.info()))
            .collect();
        if model.is_none() {
            self.check_one_model()?;
        }
        if let Some(ready) = known.iter().find(|m| m.worker.state() == WorkerState::Ready) {
            return ready.served().ok_or_else(|| no_ready_worker(model));
        }
        let models = self.set.models();
        let untold = members.iter().any(|member| member.served.load().is_none());
        match model {
            // While a worker has not told what it serves, nobody knows that the model is unknown.
            Some(name) if known.is_empty() && !untold && !models.is_empty() => {
                let served: Vec<&str> = models.iter().map(String::as_str).collect();
                Err(ApiError::model_not_found(name, &served).into())
            }
            _ => Err(no_ready_worker(model)),
        }
    }

    /// Like `served`. Where no worker has that name, `MODEL:ADAPTER` names an adapter of a model.
    pub fn served_with_adapter<'a>(
        &self,
        model: Option<&'a str>,
    ) -> Result<(Arc<Served>, Option<&'a str>), Failure> {
        let split = model.and_then(|name| name.split_once(':'));
        if let (Some(name), Some((base, adapter))) = (model, split) {
            let is_known = |name: &str| self.is_served(name) || self.aliases.load().contains_key(name);
            if !adapter.is_empty() && !is_known(name) && is_known(base) {
                return Ok((self.served(Some(base))?, Some(adapter)));
            }
        }
        Ok((self.served(model)?, None))
    }

    /// Whether all workers of a model are known to have one of our grammar backends.
    pub fn has_own_grammar_backends(&self, model: &str) -> bool {
        let members = self.members();
        let mut served = members.iter().filter_map(|member| member.served());
        served.all(|served| *served.model != *model || served.has_own_grammar_backend)
    }

    fn check_one_model(&self) -> Result<(), Failure> {
        let models = self.set.models();
        if models.len() <= 1 {
            return Ok(());
        }
        let message = format!("`model` is missing; this server has: {}", models.join(", "));
        Err(ApiError::missing("model", message).into())
    }

    /// Chooses a worker for a prompt and counts the prompt as its load at once. `avoid` lists workers that
    /// already failed on it.
    pub fn choose(&self, model: &str, prompt: &Routable, avoid: &[WorkerId]) -> Result<Chosen, Unchosen> {
        let held = self.held(prompt);
        let cached = worths(&held);
        let query = prompt.query(model, &cached, avoid);
        let policy = self.policies.of(model);
        loop {
            let selected = self.set.select(&query, policy.as_ref(), &mut rand::rng());
            let guard = selected.map_err(|error| Unchosen::new(error, query.request.now))?;
            let id = guard.worker().id();
            if let Some(prompt) = &prompt.reusable {
                self.prefixes.note_sent(id, prompt);
            }
            let member = self.members.read().get(&id).cloned();
            let Some(member) = member else {
                // It was removed since, and is not chosen again.
                self.prefixes.forget_sent(id);
                continue;
            };
            let wake = guard.is_trial().then(|| WakeOnDrop(self.trials.clone()));
            return Ok(Chosen {
                guard,
                policy: policy.name(),
                predicted_cached: held.iter().find(|held| held.worker == id).map_or(0, Held::tokens),
                is_exact: self.prefixes.is_exact(id),
                trials: self.trials.clone(),
                _wake: wake,
                _running: member.departure.request(),
                member,
            });
        }
    }

    /// What workers hold of a prompt.
    fn held(&self, prompt: &Routable) -> Vec<Held> {
        let reusable = prompt.reusable.as_ref();
        reusable.map_or_else(Vec::new, |prompt| self.prefixes.lookup(prompt))
    }

    /// Whether a worker could be chosen that is not in `avoid`.
    pub fn has_other(&self, model: &str, avoid: &[WorkerId]) -> bool {
        let now = Instant::now().into_std();
        self.set
            .ready(Some(model))
            .iter()
            .any(|w| !avoid.contains(&w.id()) && w.is_available(now))
    }
}

/// What the policies are told of the caches.
fn worths(held: &[Held]) -> Vec<(WorkerId, usize)> {
    held.iter().map(|held| (held.worker, held.worth())).collect()
}

fn no_ready_worker(model: Option<&str>) -> Failure {
    let message = match model {
        Some(model) => format!(
            "no worker is ready to serve `{}`; GET /workers shows what each is doing",
            clip(model)
        ),
        None => "no worker is ready; GET /workers shows what each is doing".to_owned(),
    };
    ApiError::unavailable(message, RETRY_AFTER).into()
}

impl From<SelectError> for Failure {
    fn from(error: SelectError) -> Self {
        match &error {
            SelectError::UnknownModel { model, known } => {
                let served: Vec<&str> = known.iter().map(String::as_str).collect();
                ApiError::model_not_found(model, &served).into()
            }
            SelectError::Unavailable { retry_after, .. } => {
                let seconds = retry_after.map_or(u64::from(RETRY_AFTER), |wait| wait.as_secs() + 1);
                let seconds = u32::try_from(seconds).unwrap_or(u32::MAX);
                ApiError::unavailable(error.to_string(), seconds).into()
            }
        }
    }
}

// === impl Chosen ===

impl Chosen {
    /// The worker answers: the prompt is computed, and if this was the trial of its breaker, others may go there before
    /// it ends.
    pub fn settle(&mut self) {
        if self.guard.settle(Instant::now().into_std()) {
            self.trials.wake();
        }
    }
}

// === impl Member ===

impl Member {
    /// What it serves; `None` until it told.
    pub fn served(&self) -> Option<Arc<Served>> {
        self.served.load_full()
    }

    /// What its operator says of it.
    pub fn given(&self) -> Given {
        self.description.lock().1.clone()
    }

    pub(crate) fn give(&self, given: Given) {
        let mut description = self.description.lock();
        description.1 = given;
        self.worker.set_info(description.1.over(&description.0));
    }

    /// Takes in what it tells of itself.
    fn learn(&self, told: WorkerInfo) {
        let mut description = self.description.lock();
        description.0 = told;
        self.worker.set_info(description.1.over(&description.0));
    }

    pub fn progress(&self) -> Arc<String> {
        self.progress.load_full()
    }

    /// Takes in the load that it pushed.
    fn observe_load(&self, load: &PushedLoad) {
        let age = Duration::from_millis(u64::from(load.age_ms));
        let now = Instant::now().into_std();
        let pending = load.prefill_pending_tokens.unwrap_or_default();
        let queued = load.waiting_uncached_tokens.unwrap_or_default();
        self.worker.report(LoadReport {
            at: now.checked_sub(age).unwrap_or(now),
            queued_tokens: queued.saturating_add(pending) as usize,
            requests: load.running_requests.saturating_add(load.waiting_requests) as usize,
            kv_usage: load.token_usage as f32,
        });
    }

    /// It said that it does not serve now, which a probe may find as well.
    pub fn ask_soon(&self) {
        self.alarm.nudge();
    }

    /// The connection to it broke: it may be gone, or another process may answer there now.
    pub fn suspect(&self) {
        self.alarm.ring();
    }
}

// === impl Served ===

impl Served {
    /// Ids below this exist.
    pub fn vocab_size(&self) -> usize {
        match self.info.vocab_size {
            0 => self.tokenizer.vocab_size(),
            told => told as usize,
        }
    }
}
