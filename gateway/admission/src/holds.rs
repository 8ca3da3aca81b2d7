//! Permits that are held, and how long that takes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::queue::Ticket;

/// Who holds permits, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Holds(BTreeSet<(Instant, Ticket)>);

/// The usual time between a permit's grant and its return.
#[derive(Debug, Default)]
pub(crate) struct HoldTime(Option<Duration>);

impl Holds {
    pub fn add(&mut self, since: Instant, ticket: Ticket) {
        self.0.insert((since, ticket));
    }

    pub fn remove(&mut self, since: Instant, ticket: Ticket) {
        self.0.remove(&(since, ticket));
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When one of them is likely to end.
    pub fn until_one_ends(&self, usual: &HoldTime, now: Instant) -> Duration {
        let Some((since, _)) = self.0.first() else {
            return Duration::ZERO;
        };
        let ran = now.saturating_duration_since(*since);
        match usual.0 {
            Some(usual) if ran < usual => usual - ran,
            // The oldest is late, so that any of them may be the next.
            Some(usual) => usual / u32::try_from(self.0.len()).unwrap_or(u32::MAX),
            // Nothing is known: what has run for long is as likely to go on for as long.
            None => ran,
        }
    }
}

impl HoldTime {
    pub fn learn(&mut self, held: Duration) {
        self.0 = Some(self.0.map_or(held, |usual| usual / 8 * 7 + held / 8));
    }
}
