//! Two counts over a window of time that slides.

use std::time::{Duration, Instant};

/// The window is kept as this many counters, so its edge moves in steps of a twelfth.
const SLOTS: usize = 12;

/// Sums over the last `SLOTS` × `step`, in a ring of counters.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    step: Duration,
    start: Option<Instant>,
    /// Number of the newest slot since `start`; slot `n` lives at `n % SLOTS`.
    newest: u64,
    slots: [(u32, u32); SLOTS],
}

impl Window {
    pub fn new(length: Duration) -> Self {
        let step = (length / SLOTS as u32).max(Duration::from_nanos(1));
        Self {
            step,
            start: None,
            newest: 0,
            slots: [(0, 0); SLOTS],
        }
    }

    /// Adds to both counts.
    pub fn count(&mut self, first: u32, second: u32, now: Instant) {
        self.advance(now);
        let slot = &mut self.slots[(self.newest % SLOTS as u64) as usize];
        slot.0 = slot.0.saturating_add(first);
        slot.1 = slot.1.saturating_add(second);
    }

    pub fn totals(&mut self, now: Instant) -> (u32, u32) {
        self.advance(now);
        self.slots.iter().fold((0u32, 0u32), |totals, slot| {
            (totals.0.saturating_add(slot.0), totals.1.saturating_add(slot.1))
        })
    }

    fn advance(&mut self, now: Instant) {
        let start = *self.start.get_or_insert(now);
        let slot = (now.saturating_duration_since(start).as_nanos() / self.step.as_nanos()) as u64;
        let passed = slot.saturating_sub(self.newest).min(SLOTS as u64);
        for offset in 0..passed {
            self.slots[((slot - offset) % SLOTS as u64) as usize] = (0, 0);
        }
        self.newest = self.newest.max(slot);
    }
}
