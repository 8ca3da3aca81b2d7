//! Writes the chunks of a streamed answer of an OpenAI endpoint, with the usage that was asked for.

use smg_api::{Chunk, ChunkChoice, StreamOptions};

use super::usage::Tally;
use crate::pipeline::{Events, Head};

/// The chunks of one call.
pub struct ChunkWriter<C> {
    pub tally: Tally,
    options: StreamOptions,
    /// Reused, so that an event costs no copies of id and model.
    chunk: Option<Chunk<C>>,
}

impl<C: ChunkChoice> ChunkWriter<C> {
    pub fn new(options: StreamOptions) -> Self {
        Self {
            tally: Tally::default(),
            options,
            chunk: None,
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
