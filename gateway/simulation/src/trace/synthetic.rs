//! Traces that are made: the same for the same seed.
//!
//! Requests arrive at times of their own, not when an answer is there, so that every policy is given the same work. A
//! next turn leaves its forerunner the time that an answer usually takes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{NANOS, TraceParams, TraceRequest};
use crate::content::{Content, Segment, mix};
use crate::error::SimulateError;

/// Requests of a trace whose length is not asked for.
const NUM_REQUESTS: usize = 2000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    SharedPrompts,
    MultiTurn,
    Agents,
    Uniform,
}

/// What a kind of trace is made of. Ranges are in tokens unless they say otherwise; within one, all are as likely.
struct Shape {
    name: &'static str,
    kind: Kind,
    about: &'static str,
    /// Openings that conversations share; the first ones are the most frequent.
    num_openings: u64,
    opening: (u32, u32),
    turns: (u32, u32),
    question: (u32, u32),
    answer: (u32, u32),
    /// Seconds between two turns.
    pause: (f64, f64),
    /// Requests per second and worker.
    rate: f64,
}

const SHAPES: [Shape; 4] = [
    Shape {
        name: "shared-prompts",
        kind: Kind::SharedPrompts,
        about: "questions after one of 200 system prompts, some of them frequent",
        num_openings: 200,
        opening: (1000, 6000),
        turns: (1, 1),
        question: (20, 600),
        answer: (20, 400),
        pause: (0.0, 0.0),
        rate: 4.0,
    },
    Shape {
        name: "multi-turn",
        kind: Kind::MultiTurn,
        about: "conversations of 2 to 12 turns after one of 8 system prompts",
        num_openings: 8,
        opening: (200, 1200),
        turns: (2, 12),
        question: (20, 800),
        answer: (50, 600),
        pause: (5.0, 60.0),
        rate: 3.0,
    },
    Shape {
        name: "agents",
        kind: Kind::Agents,
        about: "tasks of 5 to 30 quick steps after one of 20 long descriptions of tools",
        num_openings: 20,
        opening: (4000, 12000),
        turns: (5, 30),
        question: (50, 2500),
        answer: (20, 200),
        pause: (2.0, 8.0),
        rate: 3.0,
    },
    Shape {
        name: "uniform",
        kind: Kind::Uniform,
        about: "prompts that have nothing in common",
        num_openings: 0,
        opening: (0, 0),
        turns: (1, 1),
        question: (200, 4000),
        answer: (20, 400),
        pause: (0.0, 0.0),
        rate: 2.5,
    },
];

/// Names of the traces, each with what it is.
pub fn synthetic_names() -> impl Iterator<Item = (&'static str, &'static str)> {
    SHAPES.iter().map(|shape| (shape.name, shape.about))
}

/// A trace that is made anew for each use.
#[derive(Clone, Debug)]
pub struct SyntheticTrace {
    shape: usize,
    num_requests: usize,
    rate: f64,
    seed: u64,
}

/// A conversation that goes on.
struct Conversation {
    number: u64,
    segments: Vec<Segment>,
    turns_left: u32,
    rng: StdRng,
}

struct Maker {
    shape: &'static Shape,
    seed: u64,
    rng: StdRng,
    /// Mean nanoseconds between two new conversations.
    gap: f64,
    next_arrival: f64,
    num_conversations: u64,
    num_left: usize,
    /// When each conversation goes on.
    going_on: BinaryHeap<Reverse<(u64, u64)>>,
    conversations: std::collections::HashMap<u64, Conversation>,
}

// === impl SyntheticTrace ===

impl SyntheticTrace {
    pub(super) fn new(params: &TraceParams) -> Result<Self, SimulateError> {
        let shape = SHAPES.iter().position(|shape| shape.name == params.name);
        let shape = shape.ok_or_else(|| SimulateError::UnknownTrace {
            given: params.name.clone(),
            known: synthetic_names()
                .map(|(name, _)| name)
                .collect::<Vec<_>>()
                .join(", "),
        })?;
        Ok(Self {
            shape,
            num_requests: params.num_requests.unwrap_or(NUM_REQUESTS),
            rate: params
                .rate
                .unwrap_or(SHAPES[shape].rate * params.num_workers as f64),
            seed: params.seed,
        })
    }

    pub(super) fn requests(&self) -> impl Iterator<Item = TraceRequest> + use<> {
        let shape = &SHAPES[self.shape];
        let turns = f64::from(shape.turns.0 + shape.turns.1) / 2.0;
        Maker {
            shape,
            seed: self.seed,
            rng: StdRng::seed_from_u64(self.seed),
            gap: NANOS * turns / self.rate,
            next_arrival: 0.0,
            num_conversations: 0,
            num_left: self.num_requests,
            going_on: BinaryHeap::new(),
            conversations: std::collections::HashMap::new(),
        }
    }

    pub(super) fn num_requests(&self) -> usize {
        self.num_requests
    }

    pub(super) fn name(&self) -> &'static str {
        SHAPES[self.shape].name
    }
}

// === impl Maker ===

impl Maker {
    fn begin(&mut self) -> u64 {
        let number = self.num_conversations;
        self.num_conversations += 1;
        let mut rng = StdRng::seed_from_u64(mix(self.seed, number));
        let opening = self.opening(&mut rng);
        let turns_left = within(&mut rng, self.shape.turns);
        let conversation = Conversation {
            number,
            segments: opening,
            turns_left,
            rng,
        };
        self.conversations.insert(number, conversation);
        // Arrivals that know nothing of each other.
        self.next_arrival += -self.gap * (1.0 - self.rng.random::<f64>()).ln();
        number
    }

    /// The n-th opening is as frequent as 1/n: most of a log scale of their numbers.
    fn opening(&self, rng: &mut StdRng) -> Vec<Segment> {
        if self.shape.num_openings == 0 {
            return Vec::new();
        }
        let most = (self.shape.num_openings as f64 + 1.0).ln();
        let rank = (rng.random_range(0.0..most)).exp() as u64 - 1;
        let seed = mix(self.seed ^ 0x6f70_656e, rank);
        let (least, most) = self.shape.opening;
        let len = least + (seed % u64::from(most - least + 1)) as u32;
        vec![Segment { seed, len }]
    }

    fn turn(&mut self, arrival: u64, number: u64) -> Option<TraceRequest> {
        let shape = self.shape;
        let conversation = self.conversations.get_mut(&number)?;
        let request = conversation.turn(shape, self.seed, arrival);
        if conversation.turns_left == 0 {
            self.conversations.remove(&number);
            return Some(request);
        }
        let (least, most) = shape.pause;
        let pause = conversation.rng.random_range(least..=most) * NANOS;
        self.going_on.push(Reverse((arrival + pause as u64, number)));
        Some(request)
    }
}

impl Iterator for Maker {
    type Item = TraceRequest;

    fn next(&mut self) -> Option<TraceRequest> {
        self.num_left = self.num_left.checked_sub(1)?;
        let next_arrival = self.next_arrival as u64;
        match self.going_on.peek() {
            Some(Reverse((arrival, _))) if *arrival <= next_arrival => {
                let Reverse((arrival, number)) = self.going_on.pop()?;
                self.turn(arrival, number)
            }
            _ => {
                let number = self.begin();
                self.turn(next_arrival, number)
            }
        }
    }
}

// === impl Conversation ===

impl Conversation {
    fn turn(&mut self, shape: &Shape, seed: u64, arrival: u64) -> TraceRequest {
        self.turns_left -= 1;
        let mut part = |range, salt| {
            let place = (self.number << 16) | (self.segments.len() as u64) << 1 | salt;
            Segment {
                seed: mix(seed ^ 0x7475_726e, place),
                len: within(&mut self.rng, range),
            }
        };
        let (question, answer) = (part(shape.question, 0), part(shape.answer, 1));
        let mut prompt = self.segments.clone();
        prompt.push(question);
        self.segments.extend([question, answer]);
        let has_session = matches!(shape.kind, Kind::MultiTurn | Kind::Agents);
        TraceRequest {
            arrival,
            content: Content::new(prompt, answer),
            session: has_session.then(|| format!("session-{}", self.number)),
        }
    }
}

fn within(rng: &mut StdRng, (least, most): (u32, u32)) -> u32 {
    rng.random_range(least..=most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(name: &str, seed: u64) -> Vec<TraceRequest> {
        let params = TraceParams {
            name: name.to_owned(),
            num_requests: Some(300),
            num_workers: 4,
            seed,
            ..TraceParams::default()
        };
        SyntheticTrace::new(&params).expect("listed").requests().collect()
    }

    #[test]
    fn a_seed_makes_one_trace_in_the_order_of_time() {
        for (name, _) in synthetic_names() {
            let trace = made(name, 1);
            assert_eq!(trace, made(name, 1));
            assert_ne!(trace, made(name, 2));
            assert_eq!(trace.len(), 300);
            assert!(trace.is_sorted_by_key(|request| request.arrival), "{name}");
        }
    }

    #[test]
    fn turns_go_on_from_the_answer_before() {
        let trace = made("multi-turn", 3);
        let of_first: Vec<_> = trace
            .iter()
            .filter(|r| r.session.as_deref() == Some("session-0"))
            .collect();
        assert!(of_first.len() >= 2);
        for pair in of_first.windows(2) {
            let whole = pair[0].content.prompt_len() + pair[0].content.output_len();
            assert_eq!(pair[0].content.tokens(0, whole), pair[1].content.tokens(0, whole));
            assert!(pair[1].content.prompt_len() > whole);
        }
    }

    #[test]
    fn requests_come_at_the_rate_asked_for() {
        for (name, _) in synthetic_names() {
            let params = TraceParams {
                name: name.to_owned(),
                num_requests: Some(4000),
                rate: Some(5.0),
                num_workers: 1,
                ..TraceParams::default()
            };
            let last = SyntheticTrace::new(&params).expect("listed").requests().last();
            let seconds = last.expect("4000 requests").arrival as f64 / NANOS;
            // Conversations that begin with the trace have their later turns still to come.
            assert!((700.0..=950.0).contains(&seconds), "{name}: {seconds}");
        }
    }
}
