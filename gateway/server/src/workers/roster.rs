//! Which workers there are: those of the configuration, and those that were added while the gateway runs.

use std::{sync::Arc, time::Duration};

use smg_engine_client::{Address, Connector, EngineClient, EngineError};
use smg_routing::{AddWorkerError, WorkerId};
use tokio::time::Instant;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    Alarm, AlarmedConnector, Fleet, Given, Knowledge, Member, ProbeTimes, StateFile, StateFileError,
    TokenizerSource, Watch, state_file::Added,
};
use crate::telemetry::{Telemetry, WorkerGauges};

/// Adds workers, changes what is said of them, and takes them out.
pub struct Roster {
    pub(crate) tools: Tools,
    /// Workers that are not of the configuration. Held for the whole of a change, so that changes come one by one and
    /// the file has each before it happens.
    added: tokio::sync::Mutex<Added>,
}

/// What a worker's task is made of.
pub(crate) struct Tools {
    pub fleet: Arc<Fleet>,
    pub connector: Arc<dyn Connector>,
    pub tasks: TaskTracker,
    pub telemetry: Telemetry,
    pub times: ProbeTimes,
    pub source: TokenizerSource,
    /// Whether what workers cache is followed.
    pub follows: bool,
    /// Ends all of them.
    pub stop: CancellationToken,
    pub file: Option<StateFile>,
}

#[derive(Debug, thiserror::Error)]
pub enum RosterError {
    #[error("--worker-urls: {0}")]
    Address(#[from] EngineError),
    #[error(transparent)]
    Taken(#[from] AddWorkerError),
    #[error("there is no worker of this id, or it is being removed")]
    Gone,
    #[error("--worker-state-file {0}")]
    File(#[from] StateFileError),
    #[error("--worker-state-file was not written: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// What a new list of workers changed.
#[derive(Debug, Default)]
pub struct Replaced {
    pub added: Vec<String>,
    pub removed: Vec<String>,
}

// === impl Roster ===

impl Roster {
    pub(crate) fn new(tools: Tools) -> Self {
        Self {
            tools,
            added: tokio::sync::Mutex::default(),
        }
    }

    /// Takes in the workers of the configuration and those of the file.
    pub async fn start(&self, urls: &[String]) -> Result<(), RosterError> {
        let mut added = self.added.lock().await;
        if let Some(file) = &self.tools.file {
            *added = file.read()?;
            // Whether it can be written shows here, and not when the first worker is added.
            file.write(&added)?;
        }
        let mut all: Vec<&str> = urls.iter().map(|url| plain(url)).collect();
        all.extend(
            added
                .keys()
                .map(String::as_str)
                .filter(|url| !urls.iter().any(|known| plain(known) == *url)),
        );
        for url in all {
            self.enlist(url, added.get(url).cloned().unwrap_or_default())?;
        }
        Ok(())
    }

    /// Adds a worker, also for later starts.
    pub async fn add(&self, url: &str, given: Given) -> Result<Arc<Member>, RosterError> {
        let url = plain(url);
        let mut added = self.added.lock().await;
        if let Some(held) = self.active(url) {
            let (url, id) = (url.to_owned(), held.worker.id());
            return Err(AddWorkerError { url, id }.into());
        }
        let mut next = added.clone();
        next.insert(url.to_owned(), given.clone());
        self.save(&next).await?;
        *added = next;
        self.enlist(url, given)
    }

    /// Changes what is said of a worker.
    pub async fn update<E: From<RosterError>>(
        &self,
        id: WorkerId,
        change: impl FnOnce(Given) -> Result<Given, E>,
    ) -> Result<Arc<Member>, E> {
        let mut added = self.added.lock().await;
        let member = self.member(id).filter(|member| !member.departure.has_begun());
        let member = member.ok_or(RosterError::Gone)?;
        let given = change(member.given())?;
        if added.contains_key(member.worker.url()) {
            let mut next = added.clone();
            next.insert(member.worker.url().to_owned(), given.clone());
            self.save(&next).await?;
            *added = next;
        }
        member.give(given);
        self.tools.fleet.update_policies();
        Ok(member)
    }

    /// Sends no new request to a worker, and forgets it when those that run have ended or `drain` is over. Of a worker
    /// that leaves already only the time changes.
    pub async fn remove(&self, id: WorkerId, drain: Duration) -> Result<Arc<Member>, RosterError> {
        let mut added = self.added.lock().await;
        let member = self.member(id).ok_or(RosterError::Gone)?;
        let url = member.worker.url();
        if !member.departure.has_begun() && added.contains_key(url) {
            let mut next = added.clone();
            next.remove(url);
            self.save(&next).await?;
            *added = next;
        }
        self.see_off(&member, drain);
        Ok(member)
    }

    /// The configuration has other workers now. Those that were added stay.
    pub async fn replace(&self, urls: &[String], drain: Duration) -> Result<Replaced, RosterError> {
        let added = self.added.lock().await;
        let mut replaced = Replaced::default();
        for member in self.tools.fleet.members() {
            let url = member.worker.url();
            let stays = added.contains_key(url) || urls.iter().any(|wanted| plain(wanted) == url);
            if !stays && !member.departure.has_begun() {
                self.see_off(&member, drain);
                replaced.removed.push(url.to_owned());
            }
        }
        for url in urls.iter().map(|url| plain(url)) {
            if self.active(url).is_none() {
                self.enlist(url, Given::default())?;
                replaced.added.push(url.to_owned());
            }
        }
        Ok(replaced)
    }

    fn member(&self, id: WorkerId) -> Option<Arc<Member>> {
        let members = self.tools.fleet.members();
        members.into_iter().find(|member| member.worker.id() == id)
    }

    fn active(&self, url: &str) -> Option<Arc<Member>> {
        let members = self.tools.fleet.members();
        let is_active = |member: &Arc<Member>| member.worker.url() == url && !member.departure.has_begun();
        members.into_iter().find(is_active)
    }

    async fn save(&self, next: &Added) -> Result<(), RosterError> {
        let Some(file) = self.tools.file.clone() else {
            return Ok(());
        };
        let next = next.clone();
        Ok(self
            .tools
            .tasks
            .spawn_blocking(move || file.write(&next))
            .await??)
    }

    fn see_off(&self, member: &Arc<Member>, drain: Duration) {
        tracing::info!(
            worker = member.worker.url(),
            ?drain,
            "worker is removed; what runs there may end"
        );
        member.worker.drain();
        self.tools.fleet.sessions.lose(member.worker.id());
        member.departure.begin(Instant::now() + drain);
    }

    /// Starts the task of a worker, which lasts until it is removed.
    fn enlist(&self, url: &str, given: Given) -> Result<Arc<Member>, RosterError> {
        let tools = &self.tools;
        let address: Address = url.parse()?;
        let alarm = Arc::<Alarm>::default();
        let connector = AlarmedConnector {
            inner: tools.connector.clone(),
            alarm: alarm.clone(),
        };
        let client = EngineClient::new(address, Arc::new(connector), tools.tasks.clone());
        let member = tools.fleet.add(url, client, alarm)?;
        member.give(given);
        let watch = Watch {
            fleet: tools.fleet.clone(),
            member: member.clone(),
            times: tools.times,
            source: tools.source.clone(),
            telemetry: tools.telemetry.clone(),
            tasks: tools.tasks.clone(),
            knowledge: Knowledge::default(),
            follows: tools.follows,
            following: None,
        };
        let stop = tools.stop.clone();
        let task = live(watch, member.clone());
        tools
            .tasks
            .spawn(async move { stop.run_until_cancelled(task).await });
        Ok(member)
    }
}

/// A worker from its first probe to the last that is known of it.
async fn live(watch: Watch, member: Arc<Member>) {
    let (fleet, telemetry, follows) = (watch.fleet.clone(), watch.telemetry.clone(), watch.follows);
    watch.run(member.departure.begun()).await;
    member
        .progress
        .store(Arc::new("requests that run may end".to_owned()));
    member.departure.finished().await;
    fleet.remove(&member);
    let url = member.worker.url();
    tracing::info!(worker = url, "worker is gone");
    if fleet.members().iter().all(|other| other.worker.url() != url) {
        let nothing = WorkerGauges {
            ready: false,
            running_requests: 0,
            pending_tokens: 0,
            breaker: 0,
        };
        let url = url.to_owned().into();
        telemetry.worker_state(&url, nothing);
        if follows {
            telemetry.kv_feed(&url, false, 0);
        }
    }
    if let Some(model) = &member.worker.info().model {
        let ready = fleet.set.ready(Some(model)).len();
        telemetry.pool_size(&model.clone().into(), ready);
    }
}

/// A URL as it is compared.
fn plain(url: &str) -> &str {
    url.trim_end_matches('/')
}
