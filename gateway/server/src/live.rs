//! The requests that run now, by their public id, so that `/abort_request` can end exactly one of them.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// Registry of running requests. Clones share it.
#[derive(Clone, Default)]
pub struct LiveRequests(Arc<Mutex<HashMap<Arc<str>, Vec<CancellationToken>>>>);

/// Keeps one request listed until dropped.
pub struct LiveGuard {
    registry: LiveRequests,
    id: Arc<str>,
    token: CancellationToken,
}

/// An id that may not repeat is already running.
#[derive(Debug)]
pub struct Duplicate;

// === impl LiveRequests ===

impl LiveRequests {
    /// Lists a request. Ids that come from headers may repeat; `unique` ones (a client's `rid`) may not.
    pub fn enter(&self, id: &str, unique: bool) -> Result<LiveGuard, Duplicate> {
        let id: Arc<str> = id.into();
        let token = CancellationToken::new();
        let mut table = self.0.lock();
        let running = table.entry(id.clone()).or_default();
        if unique && !running.is_empty() {
            return Err(Duplicate);
        }
        running.push(token.clone());
        drop(table);
        Ok(LiveGuard {
            registry: self.clone(),
            id,
            token,
        })
    }

    /// Ends the requests with exactly this id; says how many there were.
    pub fn abort(&self, id: &str) -> usize {
        self.0.lock().get(id).map_or(0, |running| cancel_all(running))
    }

    /// Ends every request; says how many there were.
    pub fn abort_all(&self) -> usize {
        self.0.lock().values().map(|running| cancel_all(running)).sum()
    }
}

fn cancel_all(running: &[CancellationToken]) -> usize {
    let live = running.iter().filter(|token| !token.is_cancelled());
    live.map(CancellationToken::cancel).count()
}

// === impl LiveGuard ===

impl LiveGuard {
    /// Fires when somebody asks for this request to end.
    pub fn aborted(&self) -> &CancellationToken {
        &self.token
    }
}

impl Drop for LiveGuard {
    fn drop(&mut self) {
        let mut table = self.registry.0.lock();
        if let Some(running) = table.get_mut(&self.id) {
            // Marks this entry as gone; the id leaves the table with its last running request.
            self.token.cancel();
            running.retain(|token| !token.is_cancelled());
            if running.is_empty() {
                table.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn abort_ends_the_exact_id_only() {
        let live = LiveRequests::default();
        let first = live.enter("job-1", true).unwrap();
        let second = live.enter("job-10", true).unwrap();
        assert_eq!(live.abort("job-1"), 1);
        assert!(first.aborted().is_cancelled());
        assert!(!second.aborted().is_cancelled());
    }

    #[test]
    fn a_unique_id_cannot_run_twice_at_once() {
        let live = LiveRequests::default();
        let first = live.enter("job", true).unwrap();
        assert!(live.enter("job", true).is_err());
        drop(first);
        assert!(live.enter("job", true).is_ok());
    }

    #[test]
    fn a_repeated_header_id_lists_each_request() {
        let live = LiveRequests::default();
        let _first = live.enter("same", false).unwrap();
        let second = live.enter("same", false).unwrap();
        drop(second);
        assert_eq!(live.abort_all(), 1);
        assert_eq!(live.abort("unknown"), 0);
    }
}
