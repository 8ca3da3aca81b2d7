//! One target's stream of events: which batches to apply, and what to ask for when some are missing.

mod snapshot;

use std::collections::{BTreeMap, VecDeque};

use crate::event::{Applied, KvEvent};
use snapshot::{Collected, Collector};

/// Batches that may wait for the ones before them. What comes beyond is asked for again.
const MAX_WAITING: usize = 1024;
/// Recent batches whose time is remembered, to tell a repeated one from one of another life of the worker.
const REMEMBERED: usize = 256;

/// The number of a worker's first batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// ZMQ.
    FromZero,
    /// gRPC.
    FromOne,
}

impl Numbering {
    fn first(self) -> u64 {
        match self {
            Self::FromZero => 0,
            Self::FromOne => 1,
        }
    }
}

/// How missing batches are had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repair {
    /// From a socket beside the stream, which goes on meanwhile (ZMQ).
    Replay,
    /// By another subscription in place of the present one (gRPC). Number 0 asks for a snapshot.
    Resubscribe,
}

#[derive(Clone, Copy, Debug)]
pub struct FeedParams {
    pub numbering: Numbering,
    pub repair: Repair,
}

/// A batch as it came. One that only tells the load is no batch: leave it out.
#[derive(Clone, Debug, PartialEq)]
pub struct EventBatch {
    pub number: u64,
    /// Seconds since the epoch, of the worker's clock: a repeated batch has the same.
    pub timestamp: f64,
    pub events: Vec<KvEvent>,
    /// Set while a snapshot is sent.
    pub snapshot: Option<SnapshotChunk>,
}

/// Position of a batch inside a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotChunk {
    pub index: u32,
    pub count: u32,
    /// Batches before this number are not covered.
    pub unknown_before: u64,
}

/// What the caller has to do. Waits between attempts are the caller's: a worker may refuse at once, again and again.
#[derive(Clone, Debug, PartialEq)]
pub enum Reaction {
    /// Apply these, and tell [`EventFeed::count`] what became of them.
    Apply(Vec<KvEvent>),
    /// Ask the replay socket for the batches from this number on, hand each to [`EventFeed::receive`], then call
    /// [`EventFeed::replay_ended`].
    Replay { from: u64 },
    /// Close the stream and subscribe with this number, then call [`EventFeed::opened`].
    Resubscribe { from: u64 },
}

/// Why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// OUT_OF_RANGE or DATA_LOSS: the worker does not have what was asked for.
    HistoryLost,
    /// UNIMPLEMENTED: the worker has no events.
    Unimplemented,
    /// Anything else; also an end without an error.
    Broken,
}

/// Counts since the feed was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FeedCounters {
    pub batches: u64,
    pub duplicates: u64,
    pub gaps: u64,
    /// Replays and new subscriptions that were asked for.
    pub repairs: u64,
    /// Gaps that no repair closed; all was forgotten then.
    pub lost: u64,
    pub snapshots: u64,
    pub restarts: u64,
    pub applied: Applied,
}

/// What was asked for to close a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// The missing batches.
    Missing,
    /// Everything: the missing batches did not come, or there are none.
    All,
}

pub struct EventFeed {
    params: FeedParams,
    off: bool,
    /// Number of the next batch to apply; unset before the first one.
    next: Option<u64>,
    /// The view includes all that happened before `next`.
    complete: bool,
    asked: Asked,
    /// The stream that was asked for is open.
    reopened: bool,
    replaying: bool,
    /// Something was applied since the replay began.
    progress: bool,
    /// The stream ended, or nothing of the new one shows yet that it is of the same life of the worker.
    unconfirmed: bool,
    /// The highest number that came.
    highest: u64,
    waiting: BTreeMap<u64, (f64, Vec<KvEvent>)>,
    /// Number and time of the latest applied batches.
    recent: VecDeque<(u64, f64)>,
    snapshot: Collector,
    counters: FeedCounters,
}

impl EventFeed {
    pub fn new(params: FeedParams) -> Self {
        Self {
            params,
            off: false,
            next: None,
            complete: false,
            asked: Asked::Nothing,
            reopened: false,
            replaying: false,
            progress: false,
            unconfirmed: false,
            highest: 0,
            waiting: BTreeMap::new(),
            recent: VecDeque::new(),
            snapshot: Collector::default(),
            counters: FeedCounters::default(),
        }
    }

    /// The number to subscribe with, or to replay from beside a stream that just began; none when the worker
    /// has no events.
    pub fn start(&self) -> Option<u64> {
        (!self.off).then(|| self.wanted())
    }

    /// Whether the target's view follows its stream without a hole. If not, ask the approximate index.
    pub fn is_exact(&self) -> bool {
        let is_in_step = self.next.is_some() && self.asked == Asked::Nothing && !self.snapshot.is_open();
        is_in_step && !self.off && !self.unconfirmed
    }

    /// Whether the view includes what was stored before the feed came in. An exact view that is not complete
    /// says nothing wrong, but may miss pages until they are stored again.
    pub fn is_complete(&self) -> bool {
        self.is_exact() && self.complete
    }

    pub fn is_off(&self) -> bool {
        self.off
    }

    pub fn counters(&self) -> FeedCounters {
        self.counters
    }

    /// Notes what became of applied events.
    pub fn count(&mut self, applied: Applied) {
        self.counters.applied += applied;
    }

    /// A batch of the stream, or of a replay.
    pub fn receive(&mut self, batch: EventBatch) -> Vec<Reaction> {
        if self.off {
            return Vec::new();
        }
        self.counters.batches += 1;
        self.highest = self.highest.max(batch.number);
        if let Some(chunk) = batch.snapshot {
            return self.receive_chunk(batch, chunk);
        }
        if self.snapshot.is_open() {
            // The chunks of a snapshot follow each other, so the rest of this one is lost.
            self.snapshot = Collector::default();
            self.counters.gaps += 1;
            return self.ask_for_all();
        }
        match self.next {
            None => self.receive_first(batch),
            Some(next) if batch.number < next => self.receive_old(batch),
            Some(_) => self.receive_in_order(batch),
        }
    }

    /// The stream that [`Reaction::Resubscribe`] asked for is open.
    pub fn opened(&mut self) {
        self.waiting.clear();
        self.snapshot = Collector::default();
        self.reopened = true;
        self.unconfirmed = self.wanted() > 0;
        self.highest = self.next.map_or(0, |next| next.saturating_sub(1));
    }

    /// All batches that the replay had were received.
    pub fn replay_ended(&mut self) -> Vec<Reaction> {
        self.replaying = false;
        if self.off || self.asked == Asked::Nothing {
            return Vec::new();
        }
        if !self.misses_some() {
            self.asked = Asked::Nothing;
            return Vec::new();
        }
        if self.progress {
            return self.ask_for_missing(); // it brought some, and others were lost meanwhile
        }
        let first_known = self.waiting.first_key_value().map(|(&number, _)| number);
        self.give_up_before(first_known.unwrap_or(self.highest.saturating_add(1)))
    }

    /// The replay could not be had; the reaction asks for it again.
    pub fn replay_failed(&mut self) -> Vec<Reaction> {
        self.replaying = false;
        if self.off || self.asked == Asked::Nothing {
            return Vec::new();
        }
        self.ask_for_missing()
    }

    /// The stream ended, or could not be opened.
    pub fn ended(&mut self, end: StreamEnd) -> Vec<Reaction> {
        if self.off {
            return Vec::new();
        }
        self.unconfirmed = true;
        match end {
            StreamEnd::Broken => {
                self.snapshot = Collector::default();
                vec![Reaction::Resubscribe { from: self.wanted() }]
            }
            StreamEnd::HistoryLost => {
                let mut reactions = self.restarted();
                reactions.append(&mut self.ask_for_all());
                reactions
            }
            StreamEnd::Unimplemented => {
                let reactions = self.restarted();
                self.off = true;
                reactions
            }
        }
    }

    /// The worker lost its cache or was started anew: forgets all and waits for the first batch.
    pub fn restarted(&mut self) -> Vec<Reaction> {
        let knew = self.next.is_some();
        self.next = None;
        self.complete = false;
        self.asked = Asked::Nothing;
        self.highest = 0;
        self.waiting.clear();
        self.recent.clear();
        self.snapshot = Collector::default();
        if !knew {
            return Vec::new();
        }
        self.counters.restarts += 1;
        vec![Reaction::Apply(vec![KvEvent::Cleared])]
    }

    fn first(&self) -> u64 {
        self.params.numbering.first()
    }

    /// The number to ask for: that of the last batch that was applied. Should it come with another time, it is of
    /// another life of the worker. 0, for all, where nothing is known.
    fn wanted(&self) -> u64 {
        match (self.asked, self.next) {
            (Asked::Nothing | Asked::Missing, Some(next)) if next > self.first() => next - 1,
            _ => 0,
        }
    }

    fn receive_first(&mut self, batch: EventBatch) -> Vec<Reaction> {
        self.next = Some(self.first());
        self.complete = true;
        self.receive_in_order(batch)
    }

    fn receive_in_order(&mut self, batch: EventBatch) -> Vec<Reaction> {
        if self.unconfirmed {
            // The batch that was asked for, the last one applied, did not come: who knows what the others follow.
            self.counters.gaps += 1;
            return self.ask_for_all();
        }
        let is_first = batch.number == self.first();
        if self.next == Some(batch.number) && (is_first || self.asked != Asked::All) {
            let mut events = batch.events;
            self.advance(batch.number, batch.timestamp, &events);
            events.append(&mut self.take_waiting());
            return vec![Reaction::Apply(events)];
        }
        let number = batch.number;
        if self.waiting.len() < MAX_WAITING {
            self.waiting.insert(number, (batch.timestamp, batch.events));
        }
        match (self.asked, self.params.repair) {
            (Asked::Nothing, _) => {
                self.counters.gaps += 1;
                self.ask_for_missing()
            }
            (Asked::Missing, Repair::Resubscribe) if self.reopened => self.ask_for_all(),
            // Not even a snapshot came: go on from here.
            (Asked::All, Repair::Resubscribe) if self.reopened => self.give_up_before(number),
            (Asked::Missing | Asked::All, _) => Vec::new(),
        }
    }

    /// A number that was applied already: the same batch again, or one of another life of the worker.
    fn receive_old(&mut self, batch: EventBatch) -> Vec<Reaction> {
        let same = match self.recent.iter().find(|(number, _)| *number == batch.number) {
            Some((_, timestamp)) => timestamp.to_bits() == batch.timestamp.to_bits(),
            None => self
                .recent
                .back()
                .is_none_or(|(_, latest)| batch.timestamp <= *latest),
        };
        if same {
            self.unconfirmed = false;
            self.counters.duplicates += 1;
            return Vec::new();
        }
        let mut reactions = self.restarted();
        self.highest = batch.number;
        reactions.extend(self.receive_first(batch));
        reactions
    }

    fn receive_chunk(&mut self, batch: EventBatch, chunk: SnapshotChunk) -> Vec<Reaction> {
        let (number, timestamp) = (batch.number, batch.timestamp);
        if chunk.index > 0 && !self.snapshot.is_open() && self.next.is_some_and(|next| number < next) {
            self.counters.duplicates += 1;
            return Vec::new();
        }
        match self.snapshot.add(number, batch.events, chunk) {
            Collected::Part => Vec::new(),
            Collected::Broken => {
                self.counters.gaps += 1;
                self.ask_for_all()
            }
            Collected::Whole(mut events) => {
                self.counters.snapshots += 1;
                events.insert(0, KvEvent::Cleared);
                self.recent.clear();
                self.highest = self
                    .waiting
                    .last_key_value()
                    .map_or(number, |(&last, _)| last.max(number));
                self.advance(number, timestamp, &events);
                self.complete = chunk.unknown_before <= self.first();
                events.append(&mut self.take_waiting());
                vec![Reaction::Apply(events)]
            }
        }
    }

    fn ask_for_missing(&mut self) -> Vec<Reaction> {
        self.asked = Asked::Missing;
        self.ask()
    }

    fn ask_for_all(&mut self) -> Vec<Reaction> {
        self.asked = Asked::All;
        self.ask()
    }

    fn ask(&mut self) -> Vec<Reaction> {
        let from = self.wanted();
        self.reopened = false;
        if self.replaying {
            return Vec::new(); // its end asks again
        }
        self.counters.repairs += 1;
        match self.params.repair {
            Repair::Resubscribe => vec![Reaction::Resubscribe { from }],
            Repair::Replay => {
                self.replaying = true;
                self.progress = false;
                vec![Reaction::Replay { from }]
            }
        }
    }

    /// Batches before `number` are lost, and with them what they removed: forgets all before it goes on.
    fn give_up_before(&mut self, number: u64) -> Vec<Reaction> {
        self.counters.lost += 1;
        self.next = Some(number);
        self.complete = false;
        self.recent.clear();
        let mut events = vec![KvEvent::Cleared];
        events.append(&mut self.take_waiting());
        let mut reactions = vec![Reaction::Apply(events)];
        if self.misses_some() {
            reactions.append(&mut self.ask_for_missing());
        }
        reactions
    }

    /// Batches came, and others before them did not.
    fn misses_some(&self) -> bool {
        self.next.is_some_and(|next| next <= self.highest)
    }

    fn advance(&mut self, number: u64, timestamp: f64, events: &[KvEvent]) {
        // What was stored before is gone, known or not.
        self.complete |= events.contains(&KvEvent::Cleared);
        self.next = Some(number.saturating_add(1));
        self.progress = true;
        self.unconfirmed = false;
        self.recent.push_back((number, timestamp));
        if self.recent.len() > REMEMBERED {
            self.recent.pop_front();
        }
    }

    /// What waited and is due now.
    fn take_waiting(&mut self) -> Vec<KvEvent> {
        let mut due = Vec::new();
        while let Some(entry) = self.waiting.first_entry() {
            let number = *entry.key();
            if self.next.is_some_and(|next| number > next) {
                return due;
            }
            let (timestamp, mut events) = entry.remove();
            if self.next == Some(number) {
                self.advance(number, timestamp, &events);
                due.append(&mut events);
            }
        }
        if !self.misses_some() {
            self.asked = Asked::Nothing;
        }
        due
    }
}

#[cfg(test)]
mod tests;
