//! Collects the chunks of a snapshot.

use super::SnapshotChunk;
use crate::event::KvEvent;

/// Chunks that came so far. All have one number, or each the number after the last one's.
#[derive(Default)]
pub(super) struct Collector {
    open: Option<Open>,
}

struct Open {
    last: u64,
    index: u32,
    count: u32,
    events: Vec<KvEvent>,
}

pub(super) enum Collected {
    Part,
    Whole(Vec<KvEvent>),
    /// The chunk does not follow the last one; all is dropped.
    Broken,
}

impl Collector {
    pub fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// A chunk of index 0 begins anew.
    pub fn add(&mut self, number: u64, mut events: Vec<KvEvent>, chunk: SnapshotChunk) -> Collected {
        let mut open = match self.open.take() {
            _ if chunk.index == 0 => Open {
                last: number,
                index: 0,
                count: chunk.count,
                events: Vec::new(),
            },
            Some(open) if number == open.last && chunk.index == open.index => {
                self.open = Some(open); // the same again
                return Collected::Part;
            }
            Some(open) if follows(&open, number, chunk) => Open {
                last: number,
                index: chunk.index,
                ..open
            },
            _ => return Collected::Broken,
        };
        open.events.append(&mut events);
        if open.index.saturating_add(1) >= open.count {
            return Collected::Whole(open.events);
        }
        self.open = Some(open);
        Collected::Part
    }
}

fn follows(open: &Open, number: u64, chunk: SnapshotChunk) -> bool {
    let numbered = number == open.last || number.checked_sub(1) == Some(open.last);
    numbered && chunk.index.checked_sub(1) == Some(open.index) && chunk.count == open.count
}
