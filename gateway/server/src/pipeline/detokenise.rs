//! Ids to text for each answer, with its own stop strings; ends a generation at a match.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context as TaskContext, Poll, ready},
};

use futures::{Stream, StreamExt, stream::SelectAll};
use smg_api::{FinishReason, MatchedStop};
use smg_engine_client::{Completion, EngineEvent, LogprobRows, Matched, StageTimes, TokenChunk};
use smg_tokenizer::{IncrementalDecoder, StopMatcher, Tokenizer};
use tokio::time::Instant;

use super::{
    call::{Counts, End, Head, Render, TextDelta, Timing},
    decoding::Decoding,
    dispatch::{LegStream, TokenStreams},
};
use crate::{error::Failure, telemetry::Generation};

/// A call whose answers come as text.
pub struct TextStream {
    pub head: Head,
    pub stream: bool,
    pub render: Box<dyn Render>,
    pub generation: Generation,
    deltas: Deltas,
}

/// One prompt needs no merging.
enum Deltas {
    One(Option<PromptText>),
    Many(SelectAll<PromptText>),
}

/// The answers of one prompt.
struct PromptText {
    prompt: usize,
    /// `None` once all answers ended: dropping it frees the worker.
    events: Option<LegStream>,
    answers: Vec<AnswerText>,
    stop_ids: Vec<u32>,
    prompt_logprobs: Option<Arc<LogprobRows>>,
}

/// The text of one answer.
struct AnswerText {
    decoder: IncrementalDecoder,
    matcher: Option<StopMatcher>,
    /// Tokens before this one complete no stop, as in the engine.
    first_watched: u32,
    counts: Counts,
    first_token: Option<Instant>,
    /// The worker's, as far as it has told them.
    times: Option<StageTimes>,
    has_prompt_logprobs: bool,
    ended: bool,
}

pub fn run(tokens: TokenStreams) -> TextStream {
    let n = tokens.head.n;
    let mut prompts: Vec<PromptText> = tokens
        .prompts
        .into_iter()
        .enumerate()
        .map(|(prompt, (decoding, events))| {
            let num_tokens = tokens.head.prompts[prompt].num_tokens;
            PromptText::new(prompt, decoding, events, (&tokens.head.tokenizer, n, num_tokens))
        })
        .collect();
    let deltas = match prompts.len() {
        1 => Deltas::One(prompts.pop()),
        _ => Deltas::Many(prompts.into_iter().collect()),
    };
    TextStream {
        head: tokens.head,
        stream: tokens.stream,
        render: tokens.render,
        generation: tokens.generation,
        deltas,
    }
}

impl TextStream {
    /// The next news; `None` after all answers ended well. After an error nothing follows.
    pub fn poll_delta(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<TextDelta, Failure>>> {
        let delta = match &mut self.deltas {
            Deltas::One(None) => return Poll::Ready(None),
            Deltas::One(Some(prompt)) => ready!(prompt.poll_next_unpin(cx)),
            Deltas::Many(prompts) => ready!(prompts.poll_next_unpin(cx)),
        };
        if !matches!(delta, Some(Ok(_))) {
            // The failure of one prompt ends the call; the others must not run on unheard.
            self.deltas = Deltas::One(None);
        }
        Poll::Ready(delta)
    }
}

// === impl PromptText ===

impl PromptText {
    fn new(prompt: usize, decoding: Decoding, events: LegStream, shape: (&Tokenizer, usize, u32)) -> Self {
        let (tokenizer, n, num_tokens) = shape;
        let mut matchers = decoding.matchers.into_iter();
        let answer = |_| AnswerText {
            decoder: tokenizer.decoder(decoding.skip_special_tokens),
            matcher: matchers.next(),
            first_watched: decoding.first_watched,
            counts: Counts {
                prompt: num_tokens,
                ..Counts::default()
            },
            first_token: None,
            times: None,
            has_prompt_logprobs: false,
            ended: false,
        };
        Self {
            prompt,
            events: Some(events),
            answers: (0..n).map(answer).collect(),
            stop_ids: decoding.stop_ids,
            prompt_logprobs: None,
        }
    }

    /// `None`: nothing to tell, as the answer ended before.
    fn read(&mut self, event: EngineEvent) -> Result<Option<TextDelta>, Failure> {
        let index = match &event {
            EngineEvent::Tokens(chunk) => chunk.index,
            EngineEvent::Complete(completion) => completion.index,
        };
        let sample = index as usize;
        let Some(answer) = self.answers.get_mut(sample).filter(|answer| !answer.ended) else {
            return Ok(None);
        };
        let mut delta = match event {
            EngineEvent::Tokens(mut chunk) => {
                if let Some(rows) = chunk.input_logprobs.take() {
                    self.prompt_logprobs.get_or_insert_with(|| Arc::new(rows));
                }
                answer.read_tokens(chunk, &self.stop_ids)?
            }
            EngineEvent::Complete(completion) => {
                if let Some(failure) = Failure::of_finish(&completion.finish) {
                    return Err(failure);
                }
                answer.read_end(completion)
            }
        };
        // Workers send the prompt's rows with the first answer only, or with each.
        if !answer.has_prompt_logprobs && self.prompt_logprobs.is_some() {
            answer.has_prompt_logprobs = true;
            delta.prompt_logprobs = self.prompt_logprobs.clone();
        }
        (delta.prompt, delta.sample) = (self.prompt, sample);
        if delta.end.is_some() {
            answer.ended = true;
            if self.answers.iter().all(|answer| answer.ended) {
                self.events = None;
            }
        }
        Ok(Some(delta))
    }
}

impl Stream for PromptText {
    type Item = Result<TextDelta, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(events) = &mut self.events else {
                return Poll::Ready(None);
            };
            let read = match ready!(events.poll_next_unpin(cx)) {
                Some(Ok(event)) => self.read(event),
                Some(Err(failure)) => Err(failure),
                None => {
                    self.events = None;
                    return Poll::Ready(None);
                }
            };
            match read {
                Ok(None) => {}
                Ok(Some(delta)) => return Poll::Ready(Some(Ok(delta))),
                Err(failure) => {
                    self.events = None;
                    return Poll::Ready(Some(Err(failure)));
                }
            }
        }
    }
}

// === impl AnswerText ===

impl AnswerText {
    fn read_tokens(&mut self, chunk: TokenChunk, stop_ids: &[u32]) -> Result<TextDelta, Failure> {
        let mut delta = TextDelta {
            logprobs: chunk.output_logprobs,
            ..TextDelta::default()
        };
        let before = self.counts.completion;
        let mut num_read = 0;
        let mut matched = None;
        for &id in &chunk.token_ids {
            num_read += 1;
            // What ends an answer is no part of its text.
            if stop_ids.binary_search(&id).is_ok() {
                continue;
            }
            let text = self.decoder.push(id)?;
            let is_watched = before + num_read as u32 >= self.first_watched;
            matched = self.emit(text, is_watched, &mut delta.text);
            if matched.is_some() {
                break;
            }
        }
        self.counts.completion += num_read as u32;
        self.counts.cached = chunk.cached_tokens;
        self.counts.tiers = chunk.cached_tiers.or(self.counts.tiers);
        self.times = chunk.times.or(self.times);
        if self.first_token.is_none() && num_read > 0 {
            self.first_token = Some(Instant::now());
        }
        if chunk.prompt_tokens > 0 {
            self.counts.prompt = chunk.prompt_tokens;
        }
        delta.token_ids = chunk.token_ids;
        if let Some(text) = matched {
            // Tokens behind the match were never asked for; they are not counted either.
            delta.token_ids.truncate(num_read);
            delta
                .logprobs
                .iter_mut()
                .for_each(|rows| truncate(rows, num_read));
            delta.end = Some(End {
                reason: FinishReason::Stop,
                matched: Some(MatchedStop::Text(text)),
                message: None,
                num_retractions: 0,
                timing: self.timing(),
            });
        } else if chunk.completion_tokens > 0 {
            self.counts.completion = chunk.completion_tokens;
        }
        delta.counts = self.counts;
        Ok(delta)
    }

    fn read_end(&mut self, completion: Completion) -> TextDelta {
        let mut delta = TextDelta::default();
        let rest = self.decoder.flush();
        let is_watched = self.counts.completion >= self.first_watched;
        let mut matched = self.emit(rest, is_watched, &mut delta.text);
        if let Some(matcher) = self.matcher.take()
            && matched.is_none()
        {
            let end = matcher.end();
            delta.text.push_str(&end.text);
            matched = end.matched;
        }
        self.counts.completion = self.counts.completion.max(completion.completion_tokens);
        self.counts.cached = self.counts.cached.max(completion.cached_tokens);
        self.counts.tiers = completion.cached_tiers.or(self.counts.tiers);
        self.times = completion.times.or(self.times);
        if completion.prompt_tokens > 0 {
            self.counts.prompt = completion.prompt_tokens;
        }
        delta.counts = self.counts;
        let reason = match completion.finish.reason {
            smg_engine_client::FinishReason::Stop => FinishReason::Stop,
            smg_engine_client::FinishReason::Length => FinishReason::Length,
            smg_engine_client::FinishReason::Abort => FinishReason::Abort,
        };
        let told = completion.finish.matched.map(|matched| match matched {
            Matched::Token(id) => MatchedStop::Token(id),
            Matched::Text(text) => MatchedStop::Text(text),
        });
        let (reason, matched) = match matched {
            Some(text) => (FinishReason::Stop, Some(MatchedStop::Text(text))),
            None => (reason, told),
        };
        let message = completion.finish.message;
        delta.end = Some(End {
            reason,
            matched,
            message,
            num_retractions: completion.num_retractions,
            timing: self.timing(),
        });
        delta
    }

    /// As of now, when the answer ends.
    fn timing(&self) -> Option<Timing> {
        self.times.map(|stages| Timing {
            stages,
            first_token: self.first_token,
            ended: Instant::now(),
        })
    }

    /// Adds text that is safe to give out; returns the stop that was met.
    fn emit(&mut self, text: String, is_watched: bool, out: &mut String) -> Option<String> {
        let Some(matcher) = self.matcher.as_mut().filter(|_| is_watched) else {
            // The common case of one token: its text becomes the delta's without a copy.
            if out.is_empty() {
                *out = text;
            } else {
                out.push_str(&text);
            }
            return None;
        };
        if text.is_empty() {
            return None;
        }
        let progress = matcher.push(&text);
        out.push_str(&progress.text);
        progress.matched
    }
}

fn truncate(rows: &mut LogprobRows, len: usize) {
    rows.logprobs.truncate(len);
    rows.token_ids.truncate(len);
    rows.top.truncate(len);
    rows.chosen.truncate(len);
}
