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
    group: Option<Arc<str>>,
    token: CancellationToken,
}

/// An id that may not repeat is already running.
#[derive(Debug)]
pub struct Duplicate;

// === impl LiveRequests ===

impl LiveRequests {
    /// Lists a request. Ids that come from headers may repeat; `unique` ones (a client's `rid`) may not. `group` is
    /// another id by which it is known, together with others.
    pub fn enter(&self, id: &str, unique: bool, group: Option<&str>) -> Result<LiveGuard, Duplicate> {
        let id: Arc<str> = id.into();
        let group: Option<Arc<str>> = group.map(Into::into);
        let token = CancellationToken::new();
        let mut table = self.0.lock();
        let running = table.entry(id.clone()).or_default();
        if unique && !running.is_empty() {
            return Err(Duplicate);
        }
        running.push(token.clone());
        if let Some(group) = &group {
            table.entry(group.clone()).or_default().push(token.clone());
        }
        drop(table);
        Ok(LiveGuard {
            registry: self.clone(),
            id,
            group,
            token,
        })
    }

    /// Ends the requests with exactly this id, or of this group; says how many there were.
    pub fn abort(&self, id: &str) -> usize {
        self.0.lock().get(id).map_or(0, |running| cancel_all(running))
    }

    /// Ends every request; says how many there were.
    pub fn abort_all(&self) -> usize {
        // One that is listed twice is cancelled once.
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
        // Marks this entry as gone; an id leaves the table with its last running request.
        self.token.cancel();
        for id in [Some(&self.id), self.group.as_ref()].into_iter().flatten() {
            if let Some(running) = table.get_mut(id) {
                running.retain(|token| !token.is_cancelled());
                if running.is_empty() {
                    table.remove(id);
                }
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
        let first = live.enter("job-1", true, None).unwrap();
        let second = live.enter("job-10", true, None).unwrap();
        assert_eq!(live.abort("job-1"), 1);
        assert!(first.aborted().is_cancelled());
        assert!(!second.aborted().is_cancelled());
    }

    #[test]
    fn abort_ends_all_of_a_group_and_each_by_its_own_id() {
        let live = LiveRequests::default();
        let [first, second, third] =
            ["job_0", "job_1", "job_2"].map(|id| live.enter(id, true, Some("job")).unwrap());
        assert_eq!(live.abort("job_1"), 1);
        assert!(second.aborted().is_cancelled() && !first.aborted().is_cancelled());
        assert_eq!(live.abort("job"), 2);
        assert!(first.aborted().is_cancelled() && third.aborted().is_cancelled());
        drop((first, second, third));
        assert!(live.0.lock().is_empty());
        let _grouped = live.enter("job_0", true, Some("job")).unwrap();
        assert_eq!(live.abort_all(), 1);
    }

    #[test]
    fn a_unique_id_cannot_run_twice_at_once() {
        let live = LiveRequests::default();
        let first = live.enter("job", true, None).unwrap();
        assert!(live.enter("job", true, None).is_err());
        drop(first);
        assert!(live.enter("job", true, None).is_ok());
    }

    #[test]
    fn a_repeated_header_id_lists_each_request() {
        let live = LiveRequests::default();
        let _first = live.enter("same", false, None).unwrap();
        let second = live.enter("same", false, None).unwrap();
        drop(second);
        assert_eq!(live.abort_all(), 1);
        assert_eq!(live.abort("unknown"), 0);
    }
}
