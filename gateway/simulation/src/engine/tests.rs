use std::num::NonZeroU32;

use super::*;
use crate::content::Segment;
use crate::params::Speed;

/// A pass over prompts takes 1 ms a token, one over answers 10 ms.
fn engine(kv_tokens: usize, prefill_budget: usize) -> Engine {
    Engine::new(EngineParams {
        speed: Speed {
            prefill_rate: 1000.0,
            step_ms: 10.0,
            request_us: 0.0,
            kv_token_ns: 0.0,
        },
        page_size: NonZeroU32::new(4).unwrap(),
        kv_tokens,
        prefill_budget,
    })
}

fn job(id: usize, prompt: &[(u64, u32)], output_len: u32) -> Job {
    let segments = prompt.iter().map(|&(seed, len)| Segment { seed, len });
    let content = Content::new(
        segments.collect(),
        Segment {
            seed: 1000 + id as u64,
            len: output_len,
        },
    );
    let keys = content.page_keys(&content.prompt_keys(), NonZeroU32::new(4).unwrap());
    Job { id, content, keys }
}

/// Runs until nothing is left to do; what happened, each with its milliseconds.
fn run(engine: &mut Engine) -> Vec<(u64, Progress)> {
    let (mut now, mut happened) = (0, Vec::new());
    for _ in 0..10_000 {
        let mut progress = Vec::new();
        let end = engine.begin(now, &mut progress);
        happened.extend(progress.drain(..).map(|step| (now / 1_000_000, step)));
        let Some(end) = end else {
            return happened;
        };
        now = end;
        engine.end(&mut progress);
        assert!(engine.used_pages() <= engine.capacity());
        happened.extend(progress.drain(..).map(|step| (now / 1_000_000, step)));
    }
    panic!("the engine does not come to an end");
}

fn began(happened: &[(u64, Progress)]) -> Vec<(usize, usize, u64)> {
    let began = happened.iter().filter_map(|(time, step)| match step {
        Progress::Began { id, cached } => Some((*id, *cached, *time)),
        _ => None,
    });
    began.collect()
}

/// Pages that were stored and removed according to the events since the last call.
fn pages(engine: &mut Engine) -> (usize, usize) {
    let mut counts = (0, 0);
    for event in engine.take_events() {
        match event {
            KvEvent::Stored(stored) => counts.0 += stored.hashes.len(),
            KvEvent::Removed(removed) => counts.1 += removed.hashes.len(),
            KvEvent::Cleared => panic!("nothing is cleared"),
        }
    }
    counts
}

#[test]
fn a_prompt_is_computed_and_each_token_takes_a_pass() {
    let mut engine = engine(400, 100);
    engine.enqueue(job(0, &[(1, 30)], 3));
    // 10 + 30 ms, and two passes of 10 ms.
    assert_eq!(
        run(&mut engine),
        [
            (40, Progress::Began { id: 0, cached: 0 }),
            (60, Progress::Ended { id: 0 }),
        ]
    );
    assert_eq!(engine.busy(), 60_000_000);
    assert_eq!(engine.load(), EngineLoad::default());
}

#[test]
fn full_pages_are_reused_and_the_last_token_is_computed() {
    let mut engine = engine(400, 100);
    engine.enqueue(job(0, &[(1, 32)], 1));
    run(&mut engine);
    engine.enqueue(job(1, &[(1, 32)], 1));
    engine.enqueue(job(2, &[(1, 32), (2, 2)], 1));
    engine.enqueue(job(3, &[(3, 32)], 1));
    let cached: Vec<_> = began(&run(&mut engine))
        .iter()
        .map(|(_, cached, _)| *cached)
        .collect();
    assert_eq!(cached, [28, 32, 0]);
}

#[test]
fn an_answer_is_reused_by_the_next_turn() {
    let mut engine = engine(400, 100);
    engine.enqueue(job(7, &[(1, 10)], 11));
    run(&mut engine);
    engine.enqueue(job(8, &[(1, 10), (1007, 11), (2, 5)], 1));
    // The last of 21 tokens was never read.
    assert_eq!(began(&run(&mut engine))[0].1, 20);
}

#[test]
fn long_prompts_are_computed_in_chunks_and_others_share_what_is_left() {
    let mut engine = engine(400, 16);
    engine.enqueue(job(0, &[(1, 24)], 1));
    engine.enqueue(job(1, &[(2, 4)], 1));
    // A pass of 16 tokens, and one of 8 and 4.
    assert_eq!(began(&run(&mut engine)), [(0, 0, 48), (1, 0, 48)]);
}

#[test]
fn who_does_not_fit_waits_and_idle_pages_make_room() {
    let mut engine = engine(40, 100);
    engine.enqueue(job(0, &[(1, 16)], 4));
    engine.enqueue(job(1, &[(2, 20)], 4));
    let happened = run(&mut engine);
    // 16 + 10 ms, three passes of 10 ms, and 20 + 10 ms.
    assert_eq!(began(&happened), [(0, 0, 26), (1, 0, 86)]);
    engine.take_events();
    engine.enqueue(job(2, &[(1, 16)], 1));
    assert_eq!(began(&run(&mut engine))[0].1, 12);
    // 4 and 5 of 10 pages are idle, 3 of them are reused, and 2 more are needed.
    assert_eq!(pages(&mut engine), (1, 1));
    engine.enqueue(job(3, &[(3, 36)], 1));
    run(&mut engine);
    engine.enqueue(job(4, &[(1, 16)], 1));
    assert_eq!(began(&run(&mut engine))[0].1, 0);
}

#[test]
fn a_request_that_can_never_fit_is_refused_alone() {
    let mut engine = engine(40, 100);
    engine.enqueue(job(0, &[(1, 40)], 1));
    engine.enqueue(job(1, &[(2, 8)], 1));
    let happened = run(&mut engine);
    assert_eq!(happened[0], (0, Progress::Refused { id: 0 }));
    assert_eq!(began(&happened), [(1, 0, 18)]);
    assert!(engine.coming.is_empty());
}

#[test]
fn equal_prompts_of_one_pass_are_both_computed_and_one_copy_stays() {
    let mut engine = engine(400, 100);
    engine.enqueue(job(0, &[(1, 16)], 1));
    engine.enqueue(job(1, &[(1, 16)], 1));
    assert_eq!(began(&run(&mut engine)), [(0, 0, 42), (1, 0, 42)]);
    assert_eq!(engine.used_pages(), 4);
    assert_eq!(pages(&mut engine), (4, 0));
}

#[test]
fn what_is_foreseen_comes_true() {
    let mut engine = engine(400, 16);
    engine.enqueue(job(0, &[(1, 40)], 1));
    let next = job(1, &[(1, 40), (2, 8)], 1);
    let foreseen = engine.foresee(&next, 0);
    // 48 tokens in all, as the first request will have left its pages: three passes.
    assert_eq!(foreseen.cached_tokens, 40);
    assert!((foreseen.ttft - 0.078).abs() < 1e-9, "{}", foreseen.ttft);
    engine.enqueue(next);
    let really = began(&run(&mut engine))[1];
    // The third pass began with the rest of the first prompt, before its last pages could be reused.
    assert_eq!(really.1, 32);
    assert!(really.2.abs_diff(78) <= 18, "{really:?}");
}
