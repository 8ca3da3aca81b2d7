//! A model of an engine: a waiting queue, passes over prompts and over answers, and a prefix cache of bounded memory.
//!
//! ```text
//! memory = pages in the cache, used or idle + pages reserved for what running requests have still to write
//! ```
//!
//! A pass takes prompts while there are any, as the engine does unless passes are mixed. A request is admitted in its
//! turn when its prompt and its whole answer fit; idle pages make room. Pages can be reused when the pass that
//! computed them ends.

use std::collections::{HashMap, VecDeque};

use smg_kv_index::{KvEvent, PageKey, RemovedBlocks, StoredBlocks, Tier};

use crate::cache::{KeyHashing, PageCache};
use crate::content::{Content, reusable_pages};
use crate::params::EngineParams;

/// A request at an engine.
pub(crate) struct Job {
    pub id: usize,
    pub content: Content,
    /// Of the full pages of prompt and answer.
    pub keys: Vec<PageKey>,
}

/// What happened to a request in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// Its answer began. Of its prompt, so many tokens were cached.
    Began {
        id: usize,
        cached: usize,
    },
    Ended {
        id: usize,
    },
    /// It can never fit in the memory.
    Refused {
        id: usize,
    },
}

/// What a request would meet. Times in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Foreseen {
    /// Until its answer begins.
    pub ttft: f64,
    /// Of the engine, for the part of its prompt that is not cached.
    pub computing: f64,
    /// Of some engine, for what goes from the cache to make room for it.
    pub spoiling: f64,
    /// Between two tokens of its answer.
    pub pace: f64,
    pub cached_tokens: usize,
}

/// How loaded an engine says it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct EngineLoad {
    pub queued_tokens: usize,
    pub num_requests: usize,
    pub kv_usage: f32,
}

pub(crate) struct Engine {
    params: EngineParams,
    cache: PageCache,
    /// Pages for what running requests have still to write.
    reserved: usize,
    waiting: VecDeque<Waiting>,
    /// Uncached tokens of the waiting prompts, as they were when they came.
    waiting_tokens: usize,
    /// How many prompts have a page of those that wait or are being computed.
    coming: HashMap<PageKey, u32, KeyHashing>,
    /// In the order of admission; the last one may be in the middle of its prompt.
    running: Vec<Running>,
    /// Tokens of context of those whose answer has begun.
    context: usize,
    pass: Option<Pass>,
    events: Vec<KvEvent>,
    busy: u64,
}

struct Waiting {
    job: Job,
    uncached: usize,
}

struct Running {
    job: Job,
    /// Pages of it that it uses in the cache.
    num_held: usize,
    num_reserved: usize,
    cached: usize,
    computed: usize,
    generated: usize,
}

struct Pass {
    /// Nanoseconds.
    end: u64,
    /// Of a pass over prompts.
    is_prefill: bool,
}

impl Engine {
    pub fn new(params: EngineParams) -> Self {
        Self {
            params,
            cache: PageCache::default(),
            reserved: 0,
            waiting: VecDeque::new(),
            waiting_tokens: 0,
            coming: HashMap::default(),
            running: Vec::new(),
            context: 0,
            pass: None,
            events: Vec::new(),
            busy: 0,
        }
    }

    /// Takes a request into the queue.
    pub fn enqueue(&mut self, job: Job) {
        let matched = self.matched_pages(&job) * self.page_size();
        let uncached = job.content.prompt_len() - matched;
        self.waiting_tokens += uncached;
        for key in &job.keys[..self.prompt_pages(&job)] {
            *self.coming.entry(*key).or_default() += 1;
        }
        self.waiting.push_back(Waiting { job, uncached });
    }

    /// Begins a pass if there is work and none is under way; returns when it ends. Requests that never fit leave.
    pub fn begin(&mut self, now: u64, progress: &mut Vec<Progress>) -> Option<u64> {
        if self.pass.is_some() {
            return None;
        }
        let num_tokens = self.plan_prefill(progress);
        let seconds = match num_tokens {
            0 if self.running.is_empty() => return None,
            0 => self.params.speed.decode(self.running.len(), self.context),
            _ => self.params.speed.prefill(num_tokens),
        };
        let nanos = ((seconds * 1e9) as u64).max(1);
        self.busy += nanos;
        self.pass = Some(Pass {
            end: now + nanos,
            is_prefill: num_tokens > 0,
        });
        Some(now + nanos)
    }

    /// Takes the results of the pass in.
    pub fn end(&mut self, progress: &mut Vec<Progress>) {
        let Some(pass) = self.pass.take() else {
            return;
        };
        let mut running = std::mem::take(&mut self.running);
        for run in &mut running {
            // Only in the pass that has computed the rest of the prompt does nothing of the answer exist yet.
            let began = run.generated == 0 && run.computed == run.job.content.prompt_len();
            if pass.is_prefill && run.generated == 0 {
                self.keep(run, run.computed);
            }
            if began {
                self.forget_coming(&run.job);
                self.context += run.job.content.prompt_len();
                progress.push(Progress::Began {
                    id: run.job.id,
                    cached: run.cached,
                });
            }
            if began || !pass.is_prefill {
                run.generated += 1;
                self.context += 1;
            }
        }
        running.retain_mut(|run| {
            let has_ended = run.generated >= run.job.content.output_len();
            if has_ended {
                self.finish(run);
                progress.push(Progress::Ended { id: run.job.id });
            }
            !has_ended
        });
        self.running = running;
        debug_assert!(self.used_pages() <= self.capacity());
    }

    /// Changes of the cache since the last call.
    pub fn take_events(&mut self) -> Vec<KvEvent> {
        std::mem::take(&mut self.events)
    }

    pub fn load(&self) -> EngineLoad {
        let in_chunks: usize = self.running.iter().map(Running::uncomputed).sum();
        let in_use = self.used_pages() - self.cache.num_idle();
        EngineLoad {
            queued_tokens: self.waiting_tokens + in_chunks,
            num_requests: self.waiting.len() + self.running.len(),
            kv_usage: in_use as f32 / self.capacity() as f32,
        }
    }

    /// Nanoseconds that passes took.
    pub fn busy(&self) -> u64 {
        self.busy
    }

    pub fn used_pages(&self) -> usize {
        self.cache.len() + self.reserved
    }

    pub fn capacity(&self) -> usize {
        self.params.kv_tokens / self.page_size()
    }

    /// What a request would meet if it came now and nothing after it.
    pub fn foresee(&self, job: &Job, now: u64) -> Foreseen {
        let reusable = &job.keys[..reusable_pages(job.content.prompt_len(), self.page_size())];
        let is_there = |key: &&PageKey| self.cache.contains(**key) || self.coming.contains_key(*key);
        let matched = reusable.iter().take_while(is_there).count();
        let cached_tokens = matched * self.page_size();
        let uncached = job.content.prompt_len() - cached_tokens;
        let tokens = self.load().queued_tokens + uncached;
        let speed = &self.params.speed;
        let passes = tokens.div_ceil(self.params.prefill_budget);
        let queue = speed.prefill(tokens) + (passes - 1) as f64 * speed.step_ms / 1e3;
        let rest = self.pass.as_ref().map_or(0, |pass| pass.end.saturating_sub(now));
        Foreseen {
            ttft: rest as f64 / 1e9 + queue + self.wait_for_memory(job, matched),
            computing: uncached as f64 / speed.prefill_rate,
            spoiling: self.spoiled_pages(job, matched) as f64 * self.page_size() as f64 / speed.prefill_rate,
            pace: speed.decode(self.running.len() + 1, self.context + job.content.prompt_len()),
            cached_tokens,
        }
    }

    /// Idle pages that will have to go for what waits and for this one.
    fn spoiled_pages(&self, job: &Job, matched: usize) -> usize {
        let free = self.capacity() - self.used_pages();
        (self.pages(job) - matched).saturating_sub(free)
    }

    /// Seconds until enough running requests have ended for all that wait and this one.
    fn wait_for_memory(&self, job: &Job, matched: usize) -> f64 {
        let of_waiting: usize = self.waiting.iter().map(|waiting| self.pages(&waiting.job)).sum();
        let needed = of_waiting + self.pages(job) - matched;
        let room = self.capacity() - self.used_pages() + self.cache.num_idle();
        let mut missing = needed.saturating_sub(room);
        if missing == 0 {
            return 0.0;
        }
        let mut left: Vec<(usize, usize)> = self
            .running
            .iter()
            .map(|run| (run.job.content.output_len() - run.generated, self.pages(&run.job)))
            .collect();
        left.sort_unstable();
        let step = self.params.speed.decode(self.running.len(), self.context);
        for (tokens, pages) in left {
            missing = missing.saturating_sub(pages);
            if missing == 0 {
                return tokens as f64 * step;
            }
        }
        // What waits does not fit at once: its own answers come before.
        let outputs: usize = self
            .waiting
            .iter()
            .map(|waiting| waiting.job.content.output_len())
            .sum();
        outputs as f64 * step
    }

    /// Chooses what the next pass computes of prompts; returns its tokens.
    fn plan_prefill(&mut self, progress: &mut Vec<Progress>) -> usize {
        let mut left = self.params.prefill_budget;
        if let Some(run) = self.running.last_mut() {
            left -= run.compute(left);
        }
        while left > 0 {
            let Some(waiting) = self.waiting.front() else {
                break;
            };
            let is_hopeless = self.pages(&waiting.job) > self.capacity();
            if !is_hopeless && !self.fits(&waiting.job) {
                break;
            }
            let Some(job) = self.leave_queue() else {
                break;
            };
            if is_hopeless {
                self.forget_coming(&job);
                progress.push(Progress::Refused { id: job.id });
                continue;
            }
            let mut run = self.admit(job);
            left -= run.compute(left);
            self.running.push(run);
        }
        self.params.prefill_budget - left
    }

    fn leave_queue(&mut self) -> Option<Job> {
        let Waiting { job, uncached } = self.waiting.pop_front()?;
        self.waiting_tokens -= uncached;
        Some(job)
    }

    fn forget_coming(&mut self, job: &Job) {
        for key in &job.keys[..self.prompt_pages(job)] {
            if let Some(count) = self.coming.get_mut(key) {
                *count -= 1;
                if *count == 0 {
                    self.coming.remove(key);
                }
            }
        }
    }

    fn fits(&self, job: &Job) -> bool {
        let matched = &job.keys[..self.matched_pages(job)];
        // Idle pages that the request itself will use make no room for it.
        let idle = matched.iter().filter(|key| self.cache.is_idle(**key)).count();
        let room = self.capacity() - self.used_pages() + self.cache.num_idle() - idle;
        self.pages(job) - matched.len() <= room
    }

    fn admit(&mut self, job: Job) -> Running {
        let matched = self.matched_pages(&job);
        for key in &job.keys[..matched] {
            self.cache.acquire(*key);
        }
        let num_reserved = self.pages(&job) - matched;
        let mut removed = Vec::new();
        while self.used_pages() + num_reserved > self.capacity() {
            let Some(key) = self.cache.evict() else {
                break;
            };
            removed.push(name(key));
        }
        if !removed.is_empty() {
            self.events.push(KvEvent::Removed(RemovedBlocks {
                tier: Some(Tier::Device),
                hashes: removed,
            }));
        }
        self.reserved += num_reserved;
        let cached = matched * self.page_size();
        Running {
            job,
            num_held: matched,
            num_reserved,
            cached,
            computed: cached,
            generated: 0,
        }
    }

    /// Puts the full pages of what is written into the cache. Another request may have written the same: one copy stays.
    fn keep(&mut self, run: &mut Running, written: usize) {
        let until = (written / self.page_size()).min(run.job.keys.len());
        let mut new = run.num_held..run.num_held;
        for place in run.num_held..until {
            if self.cache.acquire(run.job.keys[place]) {
                new.end = place + 1;
            } else {
                self.tell_stored(&run.job, new);
                new = place + 1..place + 1;
            }
            run.num_reserved -= 1;
            self.reserved -= 1;
        }
        self.tell_stored(&run.job, new);
        run.num_held = run.num_held.max(until);
    }

    fn tell_stored(&mut self, job: &Job, pages: std::ops::Range<usize>) {
        if pages.is_empty() {
            return;
        }
        let page_size = self.page_size();
        self.events.push(KvEvent::Stored(StoredBlocks {
            tier: Tier::Device,
            namespace: String::new(),
            parent: pages.start.checked_sub(1).map(|before| name(job.keys[before])),
            block_size: self.params.page_size.get(),
            hashes: job.keys[pages.clone()].iter().map(|key| name(*key)).collect(),
            tokens: job.content.tokens(pages.start * page_size, pages.end * page_size),
        }));
    }

    fn finish(&mut self, run: &mut Running) {
        let written = run.job.content.prompt_len() + run.generated;
        self.context -= written;
        // The last token of an answer is never read.
        self.keep(run, written - 1);
        self.reserved -= run.num_reserved;
        self.cache.release(&run.job.keys[..run.num_held]);
    }

    fn matched_pages(&self, job: &Job) -> usize {
        let reusable = reusable_pages(job.content.prompt_len(), self.page_size());
        self.cache.matched(&job.keys[..reusable])
    }

    fn prompt_pages(&self, job: &Job) -> usize {
        job.content.prompt_len() / self.page_size()
    }

    /// Pages of prompt and answer.
    fn pages(&self, job: &Job) -> usize {
        (job.content.prompt_len() + job.content.output_len()).div_ceil(self.page_size())
    }

    fn page_size(&self) -> usize {
        self.params.page_size.get() as usize
    }
}

impl Running {
    fn uncomputed(&self) -> usize {
        self.job.content.prompt_len() - self.computed
    }

    /// Computes of the prompt what a pass has left; returns how much.
    fn compute(&mut self, left: usize) -> usize {
        let tokens = self.uncomputed().min(left);
        self.computed += tokens;
        tokens
    }
}

/// How engines name a page in their events.
fn name(key: PageKey) -> i64 {
    key.low.cast_signed()
}

#[cfg(test)]
mod tests;
