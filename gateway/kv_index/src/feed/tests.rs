use super::*;

fn feed(numbering: Numbering, repair: Repair) -> EventFeed {
    EventFeed::new(FeedParams { numbering, repair })
}

fn batch(number: u64, timestamp: f64) -> EventBatch {
    EventBatch {
        number,
        timestamp,
        events: Vec::new(),
        snapshot: None,
    }
}

#[test]
fn a_gap_is_repaired_and_the_view_is_exact_again() {
    let mut feed = feed(Numbering::FromZero, Repair::Replay);
    assert!(!feed.is_exact());
    assert_eq!(feed.receive(batch(0, 0.0)), [Reaction::Apply(Vec::new())]);
    assert!(feed.is_complete());
    assert_eq!(feed.receive(batch(3, 3.0)), [Reaction::Replay { from: 1 }]);
    assert!(!feed.is_exact());
    for number in 1..=3 {
        feed.receive(batch(number, number as f64));
    }
    assert!(feed.is_complete());
    assert_eq!(feed.replay_ended(), []);
    assert_eq!(feed.receive(batch(4, 4.0)), [Reaction::Apply(Vec::new())]);
    assert_eq!((feed.counters().gaps, feed.counters().duplicates), (1, 1));
}
