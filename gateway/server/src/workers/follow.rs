//! One task per worker that reports what it caches: keeps the index in step with it.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use rand::RngExt;
use smg_engine_client::{KvBatch, KvChange, KvEvents, KvEventsError, KvStored, KvTier};
use smg_kv_index::{
    EventBatch, EventFeed, FeedParams, KvEvent, Numbering, Reaction, RemovedBlocks, Repair, SnapshotChunk,
    StoredBlocks, StreamEnd, Target, Tier,
};
use tokio::task::JoinHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Fleet, Member, cache_namespace, prefixes::target};

/// Between two subscriptions that failed; doubled each time.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(30);

/// The task, which ends when this is dropped or `end`ed.
pub(crate) struct Following {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

/// What the task works on.
pub(super) struct Follower {
    pub fleet: Arc<Fleet>,
    pub member: Arc<Member>,
}

/// The feeds of one process of a worker, by rank.
struct Feeds {
    fleet: Arc<Fleet>,
    member: Arc<Member>,
    by_rank: BTreeMap<u32, EventFeed>,
}

/// How a subscription went.
enum Read {
    /// It ended, or is to be replaced by one from this number on.
    Again { from: u64, brought_news: bool },
    /// The worker has no events.
    Off,
}

// === impl Following ===

impl Following {
    /// Ends the task, and with it what the index knows from it.
    pub async fn end(mut self) {
        self.stop.cancel();
        if let Err(error) = (&mut self.task).await {
            tracing::error!(%error, "following a worker's cache failed");
        }
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Follower ===

impl Follower {
    pub fn start(self, tasks: &TaskTracker) -> Following {
        let stop = CancellationToken::new();
        let ended = stop.clone();
        let task = tasks.spawn(async move {
            // Cancelled between two messages, never inside of one.
            ended.run_until_cancelled(self.run()).await;
        });
        Following { stop, task }
    }

    async fn run(self) {
        let mut feeds = Feeds {
            fleet: self.fleet,
            member: self.member,
            by_rank: BTreeMap::new(),
        };
        let (mut from, mut wait) = (0, FIRST_WAIT);
        loop {
            match feeds.read(from).await {
                Read::Off => return,
                Read::Again {
                    from: next,
                    brought_news,
                } => {
                    from = next;
                    wait = if brought_news {
                        FIRST_WAIT
                    } else {
                        (wait * 2).min(LONGEST_WAIT)
                    };
                }
            }
            let share = rand::rng().random_range(0.5..=1.0);
            tokio::time::sleep(wait.mul_f64(share)).await;
        }
    }
}

// === impl Feeds ===

impl Feeds {
    async fn read(&mut self, from: u64) -> Read {
        let mut events = match self.member.client.subscribe_kv_events(from).await {
            Ok(events) => events,
            Err(error) => return self.ended(Some(&error), false),
        };
        for feed in self.by_rank.values_mut() {
            feed.opened();
        }
        self.read_all(&mut events).await
    }

    async fn read_all(&mut self, events: &mut KvEvents) -> Read {
        let mut brought_news = false;
        while let Some(message) = events.next().await {
            match message {
                Ok(batch) => {
                    brought_news = true;
                    if let Some(from) = self.receive(batch) {
                        return Read::Again { from, brought_news };
                    }
                }
                Err(error) => return self.ended(Some(&error), brought_news),
            }
        }
        self.ended(None, brought_news)
    }

    /// Takes a message in; returns the number to subscribe with if the stream is to be replaced.
    fn receive(&mut self, batch: KvBatch) -> Option<u64> {
        let rank = batch.rank;
        if let Some(load) = &batch.load {
            self.member.observe_load(load);
        }
        let changes = batch.changes?;
        let feed = self.by_rank.entry(rank).or_insert_with(|| {
            EventFeed::new(FeedParams {
                numbering: Numbering::FromOne,
                repair: Repair::Resubscribe,
            })
        });
        let batch = EventBatch {
            number: batch.number,
            timestamp: batch.timestamp,
            events: changes.into_iter().map(event).collect(),
            snapshot: batch.snapshot.map(|part| SnapshotChunk {
                index: part.index,
                count: part.count,
                unknown_before: part.unknown_before,
            }),
        };
        let reactions = feed.receive(batch);
        let asked = react(
            &self.fleet,
            target(self.member.worker.id(), rank),
            feed,
            reactions,
        )?;
        Some(self.number_for_all(asked))
    }

    fn ended(&mut self, error: Option<&KvEventsError>, brought_news: bool) -> Read {
        let end = match error {
            Some(KvEventsError::HistoryLost(_)) => StreamEnd::HistoryLost,
            Some(KvEventsError::Unimplemented(_)) => StreamEnd::Unimplemented,
            Some(KvEventsError::Broken(_)) | None => StreamEnd::Broken,
        };
        if let Some(error) = error {
            tracing::debug!(worker = self.member.worker.url(), %error, "the stream of its cache ended");
        }
        let mut from = 0;
        for (&rank, feed) in &mut self.by_rank {
            let reactions = feed.ended(end);
            let asked = react(
                &self.fleet,
                target(self.member.worker.id(), rank),
                feed,
                reactions,
            );
            from = asked.unwrap_or_default();
        }
        if end == StreamEnd::Unimplemented {
            return Read::Off;
        }
        let from = self.number_for_all(from);
        Read::Again { from, brought_news }
    }

    /// One number is asked for all ranks: where there are several, all of them begin again.
    fn number_for_all(&self, asked: u64) -> u64 {
        if self.by_rank.len() > 1 { 0 } else { asked }
    }
}

impl Drop for Feeds {
    fn drop(&mut self) {
        for &rank in self.by_rank.keys() {
            self.fleet
                .prefixes
                .unfollow(target(self.member.worker.id(), rank));
        }
    }
}

/// Does what a feed says; returns the number to subscribe with, if it asks for another stream.
fn react(fleet: &Fleet, target: Target, feed: &mut EventFeed, reactions: Vec<Reaction>) -> Option<u64> {
    let mut asked = None;
    for reaction in reactions {
        match reaction {
            Reaction::Apply(events) => fleet.prefixes.report(target, &events, feed),
            Reaction::Replay { from } | Reaction::Resubscribe { from } => asked = Some(from),
        }
    }
    fleet.prefixes.observe(target, feed);
    asked
}

fn event(change: KvChange) -> KvEvent {
    match change {
        KvChange::Stored(stored) => KvEvent::Stored(blocks(stored)),
        KvChange::Removed { tier, hashes } => KvEvent::Removed(RemovedBlocks {
            tier: tier.map(tier_of),
            hashes,
        }),
        KvChange::Cleared => KvEvent::Cleared,
    }
}

fn blocks(stored: KvStored) -> StoredBlocks {
    StoredBlocks {
        tier: tier_of(stored.tier),
        namespace: cache_namespace(stored.cache_salt.as_deref(), &stored.adapter),
        parent: stored.parent,
        block_size: stored.page_tokens,
        hashes: stored.hashes,
        tokens: stored.token_ids,
    }
}

fn tier_of(tier: KvTier) -> Tier {
    match tier {
        KvTier::Device => Tier::Device,
        KvTier::Host => Tier::Host,
        KvTier::Storage => Tier::Storage,
    }
}
