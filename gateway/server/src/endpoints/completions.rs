//! `POST /v1/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use smg_api::{CompletionChoice, CompletionChunkChoice, CompletionLogprobs, CompletionRequest, Prompt};
use smg_engine_client::LogprobRows;
use smg_tokenizer::Tokenizer;

use super::{Incoming, chunks::ChunkWriter, usage::token_text};
use crate::{
    context::Context,
    error::Failure,
    pipeline::{
        self, Answer, CallId, Events, GenerateCall, Head, Input, LogprobWish, PromptCall, Render, TextDelta,
    },
};

pub async fn handle(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::json(request)?;
    pipeline::run(&cx, parse(incoming)?).await
}

fn parse(incoming: Incoming) -> Result<GenerateCall, Failure> {
    let request = CompletionRequest::parse(&incoming.body)?;
    let echo = request.echo;
    // An echoed prompt has its logprobs too.
    let start_len = if echo { 0 } else { -1 };
    let wish = request.logprobs.map(|top| LogprobWish {
        start_len,
        top,
        field: "logprobs",
        token_ids: Vec::new(),
    });
    let skip_special_tokens = request.sampling.skip_special_tokens;
    let mut prompts = Vec::with_capacity(request.prompts.len());
    for (prompt, routing) in request.prompts.into_iter().zip(request.routing) {
        let (id, routing) = incoming.place(routing)?;
        prompts.push(PromptCall {
            id,
            input: match prompt {
                Prompt::Text(text) => Input::Text {
                    text,
                    field: "prompt",
                },
                Prompt::Ids(ids) => Input::Ids { ids, field: "prompt" },
            },
            sampling: request.sampling.clone(),
            logprobs: wish.clone(),
            echo,
            routing,
        });
    }
    let id = answer_id(&prompts, &incoming);
    let render = CompletionRender {
        chunks: ChunkWriter::new(request.stream_options, request.return_cached_tokens_details),
        skip_special_tokens,
        offsets: Vec::new(),
    };
    Ok(GenerateCall {
        id: id.into(),
        endpoint: "completions",
        model: request.model,
        stream: request.stream,
        prompts,
        render: Box::new(render),
        trace: incoming.trace(),
        span: incoming.span,
        arrived: incoming.arrived,
        body: incoming.space,
    })
}

/// The one prompt's own id, else that of the request.
fn answer_id(prompts: &[PromptCall], incoming: &Incoming) -> String {
    match prompts {
        [
            PromptCall {
                id: CallId { value, .. },
                ..
            },
        ] => value.clone(),
        _ => incoming.id.0.to_string(),
    }
}

/// Writes text completions.
struct CompletionRender {
    chunks: ChunkWriter<CompletionChunkChoice>,
    skip_special_tokens: bool,
    /// Per answer: characters of text so far; `None` before its first event.
    offsets: Vec<Option<usize>>,
}

// === impl CompletionRender ===

impl CompletionRender {
    /// The rows of a prompt and of what follows it as the lists of a choice.
    fn lists(
        &self,
        tokenizer: &Tokenizer,
        (prompt, answer): (Option<&LogprobRows>, Option<&LogprobRows>),
        offset: &mut usize,
    ) -> Option<CompletionLogprobs> {
        let mut lists = None;
        for rows in prompt.into_iter().chain(answer) {
            let lists = lists.get_or_insert_with(CompletionLogprobs::default);
            self.add_rows(tokenizer, rows, offset, lists);
        }
        lists
    }

    /// Adds rows to the lists of a choice; `offset` is where the first token starts.
    fn add_rows(
        &self,
        tokenizer: &Tokenizer,
        rows: &LogprobRows,
        offset: &mut usize,
        out: &mut CompletionLogprobs,
    ) {
        for (position, (&id, &logprob)) in rows.token_ids.iter().zip(&rows.logprobs).enumerate() {
            let (token, bytes) = token_text(tokenizer, id);
            out.tokens.push(token);
            out.token_logprobs.push(logprob);
            // Nothing precedes the first token of a prompt: it has neither a logprob nor alternatives.
            let top = rows
                .top
                .get(position)
                .filter(|top| !top.is_empty() && logprob.is_some());
            let named = |top: &Vec<(u32, f32)>| {
                top.iter()
                    .map(|&(id, logprob)| (token_text(tokenizer, id).0, logprob))
                    .collect()
            };
            out.top_logprobs.push(top.map(named));
            out.text_offset.push(*offset);
            if !(self.skip_special_tokens && tokenizer.is_special(id)) {
                *offset += num_chars_begun(&bytes);
            }
        }
    }
}

/// Characters that start within these bytes: continuation bytes belong to a character of an earlier token.
fn num_chars_begun(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| (**byte & 0xC0) != 0x80).count()
}

impl Render for CompletionRender {
    fn delta(&mut self, head: &Head, mut delta: TextDelta, events: &mut Events) -> Result<(), Failure> {
        let index = head.index(delta.prompt, delta.sample);
        self.chunks.count(head, index, delta.counts);
        self.offsets.resize(head.num_answers(), None);
        let before = self.offsets[index];
        let mut offset = before.unwrap_or(0);
        if before.is_none()
            && let Some(echo) = &head.prompts[delta.prompt].echo
        {
            delta.text.insert_str(0, echo);
        }
        let rows = (delta.prompt_logprobs.as_deref(), delta.logprobs.as_ref());
        let logprobs = self.lists(&head.tokenizer, rows, &mut offset);
        self.offsets[index] = Some(offset);
        let logprobs = logprobs.filter(|lists| !lists.tokens.is_empty());
        self.chunks.tell(head, delta, logprobs, events);
        Ok(())
    }

    fn end(&mut self, head: &Head, events: &mut Events) {
        self.chunks.end(head, events);
    }

    fn whole(&mut self, head: &Head, answers: Vec<Answer>) -> Result<Vec<u8>, Failure> {
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.into_iter().enumerate() {
            self.chunks.count(head, index, answer.counts);
            let rows = (answer.prompt_logprobs.as_deref(), answer.logprobs.as_ref());
            let logprobs = self.lists(&head.tokenizer, rows, &mut 0);
            let (finish_reason, matched_stop) = (answer.reason(), answer.matched());
            let text = match &head.prompts[answer.prompt].echo {
                Some(echo) => format!("{echo}{}", answer.text),
                None => answer.text,
            };
            choices.push(CompletionChoice {
                index: index as u32,
                text,
                logprobs,
                finish_reason,
                matched_stop,
            });
        }
        self.chunks.whole(head, choices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_character_counts_where_it_begins() {
        let bytes = "é".as_bytes();
        assert_eq!(num_chars_begun(&bytes[..1]) + num_chars_begun(&bytes[1..]), 1);
        assert_eq!(num_chars_begun("aé東".as_bytes()), 3);
    }
}
