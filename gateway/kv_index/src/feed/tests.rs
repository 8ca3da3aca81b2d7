use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::event::{RemovedBlocks, StoredBlocks, Tier};

fn feed(numbering: Numbering, repair: Repair) -> EventFeed {
    EventFeed::new(FeedParams { numbering, repair })
}

fn zmq() -> EventFeed {
    feed(Numbering::FromZero, Repair::Replay)
}

fn grpc() -> EventFeed {
    feed(Numbering::FromOne, Repair::Resubscribe)
}

fn stored(hash: i64) -> KvEvent {
    KvEvent::Stored(StoredBlocks {
        tier: Tier::Device,
        namespace: String::new(),
        parent: None,
        block_size: 1,
        hashes: vec![hash],
        tokens: vec![1],
    })
}

/// A batch that stores the page of its number.
fn batch(number: u64) -> EventBatch {
    EventBatch {
        number,
        timestamp: number as f64,
        events: vec![stored(number.cast_signed())],
        snapshot: None,
    }
}

fn chunk(number: u64, index: u32, count: u32, unknown_before: u64) -> EventBatch {
    EventBatch {
        snapshot: Some(SnapshotChunk {
            index,
            count,
            unknown_before,
        }),
        events: vec![stored(i64::from(index))],
        ..batch(number)
    }
}

fn applies(hashes: impl IntoIterator<Item = i64>) -> Vec<Reaction> {
    vec![Reaction::Apply(hashes.into_iter().map(stored).collect())]
}

fn applies_anew(hashes: impl IntoIterator<Item = i64>) -> Vec<Reaction> {
    let all = std::iter::once(KvEvent::Cleared).chain(hashes.into_iter().map(stored));
    vec![Reaction::Apply(all.collect())]
}

#[test]
fn a_gap_is_repaired_by_a_replay_and_the_view_is_exact_again() {
    let mut feed = zmq();
    assert!(!feed.is_exact());
    assert_eq!(feed.receive(batch(0)), applies([0]));
    assert!(feed.is_complete());
    assert_eq!(feed.receive(batch(3)), [Reaction::Replay { from: 0 }]);
    assert!(!feed.is_exact());
    assert_eq!(feed.receive(batch(0)), []);
    assert_eq!(feed.receive(batch(1)), applies([1]));
    assert_eq!(feed.receive(batch(2)), applies([2, 3]));
    assert_eq!(feed.receive(batch(3)), []);
    assert_eq!(feed.replay_ended(), []);
    assert!(feed.is_complete());
    assert_eq!(feed.receive(batch(4)), applies([4]));
    let counters = feed.counters();
    assert_eq!((counters.gaps, counters.repairs, counters.duplicates), (1, 1, 2));
}

#[test]
fn what_a_replay_missed_is_asked_for_again_and_given_up_when_nothing_comes() {
    let mut feed = zmq();
    feed.receive(batch(0));
    feed.receive(batch(2));
    feed.receive(batch(5));
    feed.receive(batch(1));
    assert_eq!(feed.replay_ended(), [Reaction::Replay { from: 2 }]);
    assert_eq!(feed.replay_failed(), [Reaction::Replay { from: 2 }]);
    assert_eq!(feed.replay_ended(), applies_anew([5]));
    assert!(feed.is_exact() && !feed.is_complete());
    assert_eq!(feed.counters().lost, 1);
    let mut cleared = batch(6);
    cleared.events = vec![KvEvent::Cleared];
    feed.receive(cleared);
    assert!(feed.is_complete());
}

#[test]
fn a_gap_during_a_replay_waits_for_its_end() {
    let mut feed = zmq();
    feed.receive(batch(0));
    assert_eq!(feed.receive(batch(2)), [Reaction::Replay { from: 0 }]);
    feed.receive(batch(1));
    assert_eq!(feed.receive(batch(4)), []);
    assert!(!feed.is_exact());
    assert_eq!(feed.replay_ended(), [Reaction::Replay { from: 2 }]);
}

#[test]
fn batches_beyond_what_may_wait_are_asked_for_later() {
    let mut feed = zmq();
    feed.receive(batch(0));
    let beyond = MAX_WAITING as u64 + 10;
    for number in 2..=beyond {
        feed.receive(batch(number));
    }
    feed.receive(batch(1));
    let last = MAX_WAITING as u64 + 1;
    assert_eq!(feed.replay_ended(), [Reaction::Replay { from: last }]);
    assert!(!feed.is_exact());
}

#[test]
fn a_new_subscription_goes_from_the_missing_batches_to_a_snapshot_to_what_comes() {
    let mut feed = grpc();
    assert_eq!(feed.start(), Some(0));
    feed.opened();
    assert_eq!(feed.receive(batch(1)), applies([1]));
    assert_eq!(feed.receive(batch(4)), [Reaction::Resubscribe { from: 1 }]);
    assert_eq!(feed.receive(batch(5)), [], "the old stream is not closed yet");
    feed.opened();
    assert_eq!(feed.receive(batch(6)), [Reaction::Resubscribe { from: 0 }]);
    feed.opened();
    assert_eq!(feed.receive(batch(8)), applies_anew([8]));
    assert!(feed.is_exact() && !feed.is_complete());
}

#[test]
fn a_snapshot_is_applied_whole_and_replaces_all() {
    let mut feed = grpc();
    feed.receive(batch(1));
    assert_eq!(feed.receive(chunk(9, 0, 3, 0)), []);
    assert!(!feed.is_exact());
    assert_eq!(feed.receive(chunk(9, 1, 3, 0)), []);
    assert_eq!(feed.receive(chunk(9, 1, 3, 0)), [], "a repeated chunk");
    assert_eq!(feed.receive(chunk(9, 2, 3, 0)), applies_anew([0, 1, 2]));
    assert!(feed.is_complete());
    assert_eq!(feed.receive(batch(10)), applies([10]));
    // Chunks may be numbered, too.
    feed.receive(chunk(20, 0, 2, 7));
    assert_eq!(feed.receive(chunk(21, 1, 2, 7)), applies_anew([0, 1]));
    assert!(feed.is_exact() && !feed.is_complete());
    assert_eq!(feed.receive(batch(22)), applies([22]));
    assert_eq!(feed.counters().snapshots, 2);
}

#[test]
fn a_snapshot_with_a_hole_is_asked_for_again() {
    for broken in [
        chunk(9, 2, 3, 0),
        chunk(9, 1, 4, 0),
        chunk(12, 1, 3, 0),
        batch(10),
    ] {
        let mut feed = grpc();
        feed.receive(chunk(9, 0, 3, 0));
        assert_eq!(feed.receive(broken), [Reaction::Resubscribe { from: 0 }]);
        assert!(!feed.is_exact());
    }
}

#[test]
fn the_end_of_a_stream_says_how_to_go_on() {
    let mut feed = grpc();
    feed.receive(batch(1));
    assert_eq!(feed.ended(StreamEnd::Broken), [Reaction::Resubscribe { from: 1 }]);
    feed.opened();
    assert!(!feed.is_exact(), "it may be another life of the worker");
    assert_eq!(feed.receive(batch(1)), []);
    assert!(feed.is_exact());
    let all = [applies_anew([]), vec![Reaction::Resubscribe { from: 0 }]].concat();
    assert_eq!(feed.ended(StreamEnd::HistoryLost), all);
    feed.opened();
    assert!(!feed.is_exact());
    // No snapshot comes, only a later batch: it is not asked for what is lost.
    assert_eq!(feed.receive(batch(30)), applies_anew([30]));
    assert_eq!(feed.ended(StreamEnd::Unimplemented), applies_anew([]));
    assert!(feed.is_off() && !feed.is_exact());
    assert_eq!(feed.start(), None);
    assert_eq!(feed.receive(batch(31)), []);
}

#[test]
fn a_worker_that_numbers_anew_is_another_one() {
    let mut feed = zmq();
    for number in 0..5 {
        feed.receive(batch(number));
    }
    let again = EventBatch {
        timestamp: 100.0,
        ..batch(0)
    };
    let all = [applies_anew([]), applies([0])].concat();
    assert_eq!(feed.receive(again), all);
    assert_eq!((feed.counters().restarts, feed.counters().duplicates), (1, 0));
    assert!(feed.is_complete());
    let late = EventBatch {
        timestamp: 100.5,
        ..batch(1)
    };
    assert_eq!(feed.receive(late), applies([1]));
}

#[test]
fn another_life_is_noticed_though_its_numbers_go_on() {
    let mut feed = grpc();
    feed.receive(batch(1));
    feed.receive(batch(2));
    assert_eq!(feed.ended(StreamEnd::Broken), [Reaction::Resubscribe { from: 2 }]);
    feed.opened();
    let other = EventBatch {
        timestamp: 50.0,
        ..batch(2)
    };
    let all = [applies_anew([]), vec![Reaction::Resubscribe { from: 0 }]].concat();
    assert_eq!(feed.receive(other), all);
    assert!(!feed.is_exact());
}

/// A worker: its batches of this life, and what it holds after each.
struct Worker {
    first: u64,
    clock: f64,
    log: Vec<EventBatch>,
    held: BTreeSet<i64>,
    /// Number of the oldest batch that can be had again.
    kept_from: u64,
}

impl Worker {
    fn new(first: u64) -> Self {
        Self {
            first,
            clock: 1.0,
            log: Vec::new(),
            held: BTreeSet::new(),
            kept_from: first,
        }
    }

    fn next(&self) -> u64 {
        self.first + self.log.len() as u64
    }

    fn step(&mut self, choice: u8) -> EventBatch {
        let hash = i64::from(choice % 16);
        let event = match choice {
            250.. => KvEvent::Cleared,
            128..250 => KvEvent::Removed(RemovedBlocks {
                tier: None,
                hashes: vec![hash],
            }),
            _ => stored(hash),
        };
        play(&mut self.held, &event);
        self.clock += 1.0;
        let batch = EventBatch {
            number: self.next(),
            timestamp: self.clock,
            events: vec![event],
            snapshot: None,
        };
        self.log.push(batch.clone());
        batch
    }

    fn restart(&mut self) {
        let clock = self.clock + 10.0;
        *self = Self::new(self.first);
        self.clock = clock;
    }

    fn from(&self, number: u64) -> Vec<EventBatch> {
        let number = number.max(self.kept_from);
        let kept = self.log.iter().filter(|batch| batch.number >= number);
        kept.cloned().collect()
    }

    /// What a gRPC subscription begins with, or the refusal of a number that is ahead.
    fn subscribe(&self, number: u64) -> Result<Vec<EventBatch>, StreamEnd> {
        if number > self.next() {
            return Err(StreamEnd::HistoryLost);
        }
        if number > 0 && number >= self.kept_from {
            return Ok(self.from(number));
        }
        let all: Vec<i64> = self.held.iter().copied().collect();
        let chunks: Vec<&[i64]> = if all.is_empty() {
            vec![&[]]
        } else {
            all.chunks(3).collect()
        };
        let count = chunks.len() as u32;
        let messages = (0..).zip(chunks).map(|(index, hashes)| EventBatch {
            number: self.next() - 1,
            timestamp: self.clock,
            events: hashes.iter().copied().map(stored).collect(),
            snapshot: Some(SnapshotChunk {
                index,
                count,
                unknown_before: 0,
            }),
        });
        Ok(messages.collect())
    }
}

fn play(held: &mut BTreeSet<i64>, event: &KvEvent) {
    match event {
        KvEvent::Stored(stored) => held.extend(&stored.hashes),
        KvEvent::Removed(removed) => held.retain(|hash| !removed.hashes.contains(hash)),
        KvEvent::Cleared => held.clear(),
    }
}

/// The caller: applies, and asks when the worker can be reached.
struct Caller {
    feed: EventFeed,
    view: BTreeSet<i64>,
    asked: Vec<Reaction>,
    is_open: bool,
}

impl Caller {
    fn new(feed: EventFeed) -> Self {
        let asked = match feed.params.repair {
            Repair::Replay => Vec::new(),
            Repair::Resubscribe => vec![Reaction::Resubscribe { from: 0 }],
        };
        Self {
            feed,
            view: BTreeSet::new(),
            is_open: asked.is_empty(),
            asked,
        }
    }

    fn take(&mut self, reactions: Vec<Reaction>) {
        for reaction in reactions {
            match reaction {
                Reaction::Apply(events) => events.iter().for_each(|event| play(&mut self.view, event)),
                other => self.asked.push(other),
            }
        }
    }

    fn receive(&mut self, batch: EventBatch) {
        let reactions = self.feed.receive(batch);
        self.take(reactions);
    }

    fn hear(&mut self, batch: EventBatch) {
        if self.is_open {
            self.receive(batch);
        }
    }

    /// Does what was asked for, and what that asks for.
    fn repair(&mut self, worker: &Worker) {
        for _ in 0..20 {
            let Some(asked) = self.asked.pop() else {
                return;
            };
            self.asked.clear();
            let reactions = match asked {
                Reaction::Replay { from } => {
                    worker
                        .from(from)
                        .into_iter()
                        .for_each(|batch| self.receive(batch));
                    self.feed.replay_ended()
                }
                Reaction::Resubscribe { from } => match worker.subscribe(from) {
                    Ok(batches) => {
                        self.feed.opened();
                        self.is_open = true;
                        batches.into_iter().for_each(|batch| self.receive(batch));
                        Vec::new()
                    }
                    Err(end) => self.feed.ended(end),
                },
                Reaction::Apply(_) => unreachable!("applied when it came"),
            };
            self.take(reactions);
        }
        panic!("the repair does not end");
    }
}

#[derive(Clone, Debug)]
enum Fate {
    Arrives,
    IsLost,
    ComesTwice,
    /// Comes after the next one.
    ComesLate,
    Restart,
    Repair,
    /// The worker keeps no more than its latest batches.
    Forgets,
}

fn fates(may_reorder: bool) -> impl Strategy<Value = Vec<(Fate, u8)>> {
    let late = if may_reorder {
        Fate::ComesLate
    } else {
        Fate::ComesTwice
    };
    let fate = prop_oneof![
        12 => Just(Fate::Arrives),
        2 => Just(Fate::IsLost),
        2 => Just(Fate::ComesTwice),
        2 => Just(late),
        1 => Just(Fate::Restart),
        2 => Just(Fate::Repair),
        1 => Just(Fate::Forgets),
    ];
    prop::collection::vec((fate, any::<u8>()), 1..200)
}

/// Runs one history. Whenever the view says that it is exact, it claims nothing that the worker does not hold, and a
/// complete one equals it; after a last batch and a repair it is exact.
fn survive(fates: Vec<(Fate, u8)>, params: FeedParams) {
    let mut worker = Worker::new(params.numbering.first());
    let mut caller = Caller::new(EventFeed::new(params));
    let mut late: Option<EventBatch> = None;
    for (fate, choice) in fates {
        // Whether the caller can know of all that happened.
        let mut in_sight = false;
        match fate {
            Fate::Repair => {
                in_sight = matches!(caller.asked.last(), Some(Reaction::Resubscribe { .. }));
                caller.repair(&worker);
            }
            Fate::Forgets => worker.kept_from = worker.next().saturating_sub(3).max(worker.first),
            Fate::Restart => {
                worker.restart();
                late = None;
                let reactions = match params.repair {
                    Repair::Replay => caller.feed.restarted(),
                    Repair::Resubscribe => {
                        caller.is_open = false;
                        caller.feed.ended(StreamEnd::Broken)
                    }
                };
                caller.take(reactions);
            }
            Fate::IsLost => {
                worker.step(choice);
            }
            Fate::ComesLate => late = Some(worker.step(choice)),
            Fate::Arrives | Fate::ComesTwice => {
                let batch = worker.step(choice);
                if matches!(fate, Fate::ComesTwice) {
                    caller.hear(batch.clone());
                }
                caller.hear(batch);
                late.take().into_iter().for_each(|batch| caller.hear(batch));
                in_sight = caller.is_open;
            }
        }
        if in_sight && caller.feed.is_complete() {
            assert_eq!(caller.view, worker.held);
        } else if in_sight && caller.feed.is_exact() {
            assert!(caller.view.is_subset(&worker.held));
        }
    }
    for _ in 0..3 {
        caller.hear(worker.step(1));
        caller.repair(&worker);
    }
    assert!(caller.feed.is_exact());
    if caller.feed.is_complete() {
        assert_eq!(caller.view, worker.held);
    }
    assert!(caller.view.is_subset(&worker.held));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_zmq_view_equals_the_workers_whenever_it_says_so(fates in fates(true)) {
        survive(fates, FeedParams { numbering: Numbering::FromZero, repair: Repair::Replay });
    }

    #[test]
    fn a_grpc_view_equals_the_workers_whenever_it_says_so(fates in fates(false)) {
        survive(fates, FeedParams { numbering: Numbering::FromOne, repair: Repair::Resubscribe });
    }
}
