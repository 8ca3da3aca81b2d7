//! Which worker keeps which session. A session lives on one worker, which alone knows what is in it and when it ends;
//! here stands where its requests go.

use std::{collections::HashMap, sync::Arc, time::Duration};

use http::StatusCode;
use parking_lot::Mutex;
use smg_api::{ApiError, clip};
use smg_routing::WorkerId;
use tokio::time::Instant;

use super::Fleet;
use crate::error::{Failure, RETRY_AFTER, SESSION_ID, SESSION_NOT_FOUND};

/// Sessions of all workers together.
const MAX_SESSIONS: usize = 100_000;

/// A session that was lost is remembered this long, so that its client learns what happened.
const LOST_FOR: Duration = Duration::from_secs(3600);

/// The least time between two looks for sessions that ended by themselves.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60);

/// The table of sessions. Clones share it.
#[derive(Clone, Default)]
pub struct Sessions(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    entries: HashMap<String, Entry>,
    swept: Option<Instant>,
}

struct Entry {
    state: State,
    /// Of silence, after which its worker closes it.
    timeout: Option<Duration>,
    /// The last use; who uses it now holds a clone.
    used: Arc<Mutex<Instant>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The worker has been asked for it.
    Opening,
    Open(WorkerId),
    /// Its worker has gone, and the session with it.
    Lost,
}

/// A name that is taken until the worker has opened the session; free again if it has not.
#[derive(Debug)]
pub struct Reservation {
    sessions: Sessions,
    id: String,
    worker: Option<WorkerId>,
}

/// A request of a session that runs.
#[derive(Debug)]
pub struct SessionUse {
    worker: WorkerId,
    used: Arc<Mutex<Instant>>,
}

// === impl Sessions ===

impl Sessions {
    /// Takes a name for a session that is about to be opened.
    pub fn reserve(&self, id: &str, timeout: Option<Duration>) -> Result<Reservation, Failure> {
        let now = Instant::now();
        let mut table = self.0.lock();
        table.sweep(now);
        let is_taken = |entry: &Entry| entry.state != State::Lost && !entry.has_ended(now);
        if table.entries.get(id).is_some_and(is_taken) {
            let message = format!(
                "session `{}` is open already; close it, or leave session_id out to get a new name",
                clip(id)
            );
            return Err(ApiError::bad_request("session_id", message)
                .with_code("session_exists")
                .into());
        }
        if table.entries.len() >= MAX_SESSIONS {
            let message = format!(
                "{MAX_SESSIONS} sessions are open, which is the limit; close those that are not used"
            );
            return Err(ApiError::unavailable(message, RETRY_AFTER)
                .with_code("too_many_sessions")
                .into());
        }
        let entry = Entry {
            state: State::Opening,
            timeout,
            used: Arc::new(Mutex::new(now)),
        };
        table.entries.insert(id.to_owned(), entry);
        Ok(Reservation {
            sessions: self.clone(),
            id: id.to_owned(),
            worker: None,
        })
    }

    /// Begins a request of a session.
    pub fn enter(&self, id: &str) -> Result<SessionUse, Failure> {
        let table = self.0.lock();
        let entry = table.entries.get(id).ok_or_else(|| unknown(id))?;
        match entry.state {
            State::Open(worker) => {
                *entry.used.lock() = Instant::now();
                let used = entry.used.clone();
                Ok(SessionUse { worker, used })
            }
            State::Opening => Err(unknown(id)),
            State::Lost => Err(lost(id)),
        }
    }

    /// Forgets a session, however it ended.
    pub fn remove(&self, id: &str) {
        self.0.lock().entries.remove(id);
    }

    /// Its worker says that the session of a request has ended. Another one of the name stays.
    pub fn forget(&self, id: &str, ended: &SessionUse) {
        let mut table = self.0.lock();
        let is_same = |entry: &Entry| Arc::ptr_eq(&entry.used, &ended.used);
        if table.entries.get(id).is_some_and(is_same) {
            table.entries.remove(id);
        }
    }

    /// The process that had a worker's sessions is gone.
    pub fn lose(&self, worker: WorkerId) {
        let now = Instant::now();
        for entry in self.0.lock().entries.values_mut() {
            if entry.state == State::Open(worker) {
                entry.state = State::Lost;
                *entry.used.lock() = now;
            }
        }
    }
}

fn unknown(id: &str) -> Failure {
    let message = format!(
        "session `{}` is not open here; /open_session opens one (a gateway knows those alone that it opened)",
        clip(id)
    );
    ApiError::not_found(message)
        .with_code(SESSION_NOT_FOUND)
        .with_param(SESSION_ID)
        .into()
}

fn lost(id: &str) -> Failure {
    let message = format!(
        "session `{}` is lost: its worker has restarted or gone; open another one and begin with the whole text",
        clip(id)
    );
    ApiError::new(StatusCode::GONE, "session_lost", message)
        .with_param(SESSION_ID)
        .into()
}

// === impl Table ===

impl Table {
    fn sweep(&mut self, now: Instant) {
        if self.swept.is_some_and(|swept| now - swept < SWEEP_INTERVAL) {
            return;
        }
        self.swept = Some(now);
        self.entries.retain(|_, entry| !entry.has_ended(now));
    }
}

impl Entry {
    /// Whether its worker has closed it by now, or it was lost long ago.
    fn has_ended(&self, now: Instant) -> bool {
        let limit = match self.state {
            State::Lost => Some(LOST_FOR),
            State::Opening => None,
            State::Open(_) => self.timeout,
        };
        let is_used = Arc::strong_count(&self.used) > 1;
        !is_used && limit.is_some_and(|limit| now - *self.used.lock() > limit)
    }
}

// === impl Reservation ===

impl Reservation {
    /// The session is open on this worker.
    pub fn keep(mut self, worker: WorkerId) {
        self.worker = Some(worker);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut table = self.sessions.0.lock();
        match (self.worker, table.entries.get_mut(&self.id)) {
            (Some(worker), Some(entry)) => entry.state = State::Open(worker),
            (None, Some(_)) => {
                table.entries.remove(&self.id);
            }
            (_, None) => {}
        }
    }
}

// === impl SessionUse ===

impl SessionUse {
    pub fn worker(&self) -> WorkerId {
        self.worker
    }
}

impl Drop for SessionUse {
    fn drop(&mut self) {
        *self.used.lock() = Instant::now();
    }
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} sessions", self.0.lock().entries.len())
    }
}

// === impl Fleet ===

impl Fleet {
    /// Begins a request for `model` in a session.
    pub fn use_session(&self, id: &str, model: &str) -> Result<SessionUse, Failure> {
        let session = self.sessions.enter(id)?;
        let member = self
            .members()
            .into_iter()
            .find(|member| member.worker.id() == session.worker());
        let Some(member) = member else {
            return Err(lost(id));
        };
        let info = member.worker.info();
        if info.serves(model) {
            return Ok(session);
        }
        let of = info.model.as_deref().unwrap_or("another model");
        let message = format!(
            "session `{}` is one of `{}`, not of `{}`",
            clip(id),
            clip(of),
            clip(model)
        );
        Err(ApiError::bad_request("model", message).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(300);

    fn open(sessions: &Sessions, id: &str, timeout: Option<Duration>) {
        sessions.reserve(id, timeout).unwrap().keep(WorkerId::new(1));
    }

    fn refusal<T: std::fmt::Debug>(result: Result<T, Failure>) -> (u16, String) {
        let error = result.unwrap_err().0;
        (error.status.as_u16(), error.code.into_owned())
    }

    fn error(status: u16, code: &str) -> (u16, String) {
        (status, code.to_owned())
    }

    #[tokio::test]
    async fn a_name_is_taken_from_the_first_ask_on_and_free_again_if_that_fails() {
        let sessions = Sessions::default();
        let reserved = sessions.reserve("s", None).unwrap();
        assert_eq!(refusal(sessions.reserve("s", None)), error(400, "session_exists"));
        assert_eq!(refusal(sessions.enter("s")), error(404, "session_not_found"));
        drop(reserved);
        open(&sessions, "s", None);
        assert_eq!(sessions.enter("s").unwrap().worker(), WorkerId::new(1));
        sessions.remove("s");
        assert_eq!(refusal(sessions.enter("s")), error(404, "session_not_found"));
    }

    #[tokio::test]
    async fn a_session_that_its_worker_ended_is_forgotten_and_no_other_of_the_name() {
        let sessions = Sessions::default();
        open(&sessions, "s", None);
        let [first, late] = [sessions.enter("s").unwrap(), sessions.enter("s").unwrap()];
        sessions.forget("s", &first);
        assert_eq!(refusal(sessions.enter("s")), error(404, "session_not_found"));
        open(&sessions, "s", None);
        sessions.forget("s", &late);
        assert!(sessions.enter("s").is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_after_its_timeout_unless_it_is_used() {
        let sessions = Sessions::default();
        open(&sessions, "s", Some(TIMEOUT));
        tokio::time::advance(TIMEOUT).await;
        let used = sessions.enter("s").unwrap();
        tokio::time::advance(TIMEOUT * 2).await;
        assert_eq!(refusal(sessions.reserve("s", None)), error(400, "session_exists"));
        drop(used);
        tokio::time::advance(TIMEOUT + Duration::from_secs(1)).await;
        open(&sessions, "other", None);
        assert_eq!(sessions.0.lock().entries.len(), 1);
        open(&sessions, "s", None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_worker_lost_is_told_for_a_while() {
        let sessions = Sessions::default();
        open(&sessions, "s", Some(TIMEOUT));
        sessions.lose(WorkerId::new(2));
        assert!(sessions.enter("s").is_ok());
        sessions.lose(WorkerId::new(1));
        tokio::time::advance(LOST_FOR).await;
        open(&sessions, "other", None);
        assert_eq!(refusal(sessions.enter("s")), error(410, "session_lost"));
        open(&sessions, "s", None);
        sessions.lose(WorkerId::new(1));
        tokio::time::advance(LOST_FOR + SWEEP_INTERVAL).await;
        open(&sessions, "another", None);
        assert_eq!(refusal(sessions.enter("s")), error(404, "session_not_found"));
    }

    #[tokio::test]
    async fn sessions_are_bounded_in_number() {
        let sessions = Sessions::default();
        for number in 0..MAX_SESSIONS {
            open(&sessions, &number.to_string(), None);
        }
        assert_eq!(
            refusal(sessions.reserve("s", None)),
            error(503, "too_many_sessions")
        );
        sessions.remove("7");
        open(&sessions, "s", None);
    }
}
