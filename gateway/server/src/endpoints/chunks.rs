//! Writes the answers of an OpenAI endpoint, whole and in chunks, with the usage that was asked for.

use smg_api::{Chunk, ChunkChoice, StreamOptions, WholeAnswer, WholeChoice};

use super::usage::Tally;
use crate::{
    error::Failure,
    pipeline::{Counts, Events, Head, TextDelta},
};

/// The answers of one call.
pub struct ChunkWriter<C> {
    tally: Tally,
    options: StreamOptions,
    /// Reused, so that an event costs no copies of id and model.
    chunk: Option<Chunk<C>>,
}

impl<C: ChunkChoice> ChunkWriter<C> {
    /// `with_details`: the usage says where cached tokens came from.
    pub fn new(options: StreamOptions, with_details: bool) -> Self {
        Self {
            tally: Tally::new(with_details),
            options,
            chunk: None,
        }
    }

    /// Takes the newest counts of an answer.
    pub fn count(&mut self, head: &Head, index: usize, counts: Counts) {
        self.tally.set(head, index, counts);
    }

    /// The news of an answer: a chunk with text and logprobs, if there are any, and one with the reason of the end.
    pub fn tell(
        &mut self,
        head: &Head,
        delta: TextDelta,
        logprobs: Option<C::Logprobs>,
        events: &mut Events,
    ) {
        let number = head.index(delta.prompt, delta.sample) as u32;
        if !delta.text.is_empty() || logprobs.is_some() {
            self.send(head, C::text(number, delta.text, logprobs), events);
        }
        if let Some(end) = delta.end {
            self.send(head, C::closing(number, end.reason, end.matched), events);
        }
    }

    /// A chunk with one choice.
    pub fn send(&mut self, head: &Head, choice: C, events: &mut Events) {
        let usage = self
            .options
            .continuous_usage_stats
            .then(|| self.tally.usage(head));
        let wanted = self.options.include_usage || self.options.continuous_usage_stats;
        let chunk = self.emptied(head);
        chunk.choices.push(choice);
        // Clients with strict decoders want the key in every chunk, or in none.
        chunk.usage = wanted.then_some(usage);
        events.json(chunk);
    }

    /// The last chunk, where it is wanted: the usage of the whole call.
    pub fn end(&mut self, head: &Head, events: &mut Events) {
        if self.options.include_usage {
            let usage = self.tally.usage(head);
            let chunk = self.emptied(head);
            chunk.usage = Some(Some(usage));
            events.json(chunk);
        }
    }

    /// All answers, whole, as a JSON body.
    pub fn whole<W: WholeChoice>(&self, head: &Head, choices: Vec<W>) -> Result<Vec<u8>, Failure> {
        let (id, model) = (head.id.to_string(), head.model.to_string());
        let usage = self.tally.usage(head);
        let answer = WholeAnswer::new(id, head.created, model, choices, usage);
        Ok(serde_json::to_vec(&answer)?)
    }

    fn emptied(&mut self, head: &Head) -> &mut Chunk<C> {
        let new = || {
            Chunk::new(
                head.id.to_string(),
                head.created,
                head.model.to_string(),
                Vec::new(),
            )
        };
        let chunk = self.chunk.get_or_insert_with(new);
        chunk.choices.clear();
        chunk
    }
}
