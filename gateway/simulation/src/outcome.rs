//! What became of a trace under a policy.

use crate::content::Content;

/// Times in nanoseconds until [`Outcome`] turns them into seconds.
pub(crate) struct Served {
    arrival: u64,
    began: u64,
    prompt_len: usize,
    output_len: usize,
    cached: usize,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    policy: String,
    num_refused: usize,
    prompt_tokens: u64,
    cached_tokens: u64,
    output_tokens: u64,
    first_arrival: Option<u64>,
    last_end: u64,
    /// Seconds from arrival to the first token, of each request that ended.
    ttft: Vec<f32>,
    /// Seconds between two tokens of an answer, of each that has two.
    tpot: Vec<f32>,
    /// By engine.
    busy: Vec<u64>,
}

/// At these shares of all requests, so many seconds or less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

// === impl Served ===

impl Served {
    pub fn new(arrival: u64, content: &Content) -> Self {
        Self {
            arrival,
            began: arrival,
            prompt_len: content.prompt_len(),
            output_len: content.output_len(),
            cached: 0,
        }
    }

    pub fn begin(&mut self, now: u64, cached: usize) {
        self.began = now;
        self.cached = cached;
    }
}

// === impl Outcome ===

impl Outcome {
    pub(crate) fn new(policy: &str) -> Self {
        Self {
            policy: policy.to_owned(),
            num_refused: 0,
            prompt_tokens: 0,
            cached_tokens: 0,
            output_tokens: 0,
            first_arrival: None,
            last_end: 0,
            ttft: Vec::new(),
            tpot: Vec::new(),
            busy: Vec::new(),
        }
    }

    pub(crate) fn end(&mut self, served: &Served, now: u64) {
        self.prompt_tokens += served.prompt_len as u64;
        self.cached_tokens += served.cached as u64;
        self.output_tokens += served.output_len as u64;
        let first = self.first_arrival.unwrap_or(served.arrival);
        self.first_arrival = Some(first.min(served.arrival));
        self.last_end = self.last_end.max(now);
        self.ttft.push(seconds(served.began - served.arrival) as f32);
        if served.output_len > 1 {
            let gaps = (served.output_len - 1) as f64;
            self.tpot.push((seconds(now - served.began) / gaps) as f32);
        }
    }

    /// No engine's memory is large enough for a request.
    pub(crate) fn refuse(&mut self) {
        self.num_refused += 1;
    }

    pub(crate) fn set_busy(&mut self, busy: Vec<u64>) {
        self.busy = busy;
        self.ttft.sort_unstable_by(f32::total_cmp);
        self.tpot.sort_unstable_by(f32::total_cmp);
    }

    pub fn policy(&self) -> &str {
        &self.policy
    }

    pub fn num_ended(&self) -> usize {
        self.ttft.len()
    }

    pub fn num_refused(&self) -> usize {
        self.num_refused
    }

    pub fn prompt_tokens(&self) -> u64 {
        self.prompt_tokens
    }

    pub fn output_tokens(&self) -> u64 {
        self.output_tokens
    }

    /// From the first arrival to the last end.
    pub fn seconds(&self) -> f64 {
        seconds(self.last_end - self.first_arrival.unwrap_or(self.last_end))
    }

    pub fn requests_per_second(&self) -> f64 {
        ratio(self.num_ended() as f64, self.seconds())
    }

    /// Generated ones.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(self.output_tokens as f64, self.seconds())
    }

    /// Share of the prompts' tokens that were taken from caches.
    pub fn hit_rate(&self) -> f64 {
        ratio(self.cached_tokens as f64, self.prompt_tokens as f64)
    }

    /// Seconds until an answer began.
    pub fn ttft(&self) -> Percentiles {
        Percentiles::of(&self.ttft)
    }

    /// Seconds between two tokens of an answer.
    pub fn tpot(&self) -> Percentiles {
        Percentiles::of(&self.tpot)
    }

    /// Time that the busiest engine worked, over the mean; 1 is even.
    pub fn imbalance(&self) -> f64 {
        let most = self.busy.iter().max().copied().unwrap_or(0);
        let sum: u64 = self.busy.iter().sum();
        ratio(most as f64 * self.busy.len() as f64, sum as f64)
    }

    /// Share of the time that engines worked.
    pub fn utilization(&self) -> f64 {
        let sum: u64 = self.busy.iter().sum();
        ratio(seconds(sum), self.seconds() * self.busy.len() as f64)
    }
}

// === impl Percentiles ===

impl Percentiles {
    fn of(sorted: &[f32]) -> Self {
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.max(1) - 1).copied().map_or(0.0, f64::from)
        };
        Self {
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
        }
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
