//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use smg_api::{
    ChatChoice, ChatChunk, ChatChunkChoice, ChatCompletion, ChatLogprobs, ChatMessage, ChatRequest,
    StreamOptions, TokenLogprob, Usage,
};
use smg_engine_client::LogprobRows;
use smg_tokenizer::Tokenizer;

use super::{
    Incoming,
    usage::{Tally, token_text, top_logprobs},
};
use crate::{
    context::Context,
    error::Failure,
    pipeline::{self, Answer, Events, GenerateCall, Head, Input, LogprobWish, PromptCall, Render, TextDelta},
};

pub async fn handle(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::json(&cx, request).await?;
    pipeline::run(&cx, parse(&incoming)?).await
}

fn parse(incoming: &Incoming) -> Result<GenerateCall, Failure> {
    let request = ChatRequest::parse(&incoming.body)?;
    let id = incoming.call_id(&request.routing);
    let wish = LogprobWish {
        start_len: -1,
        top: request.top_logprobs,
        token_ids: Vec::new(),
    };
    let prompt = PromptCall {
        input: Input::Chat {
            messages: request.messages,
            add_generation_prompt: request.template.add_generation_prompt,
            continue_final_message: request.template.continue_final_message,
            kwargs: request.template.kwargs,
        },
        sampling: request.sampling,
        logprobs: request.logprobs.then_some(wish),
        echo: false,
        priority: request.routing.priority,
        extra_key: request.routing.extra_key,
        cache_salt: request.routing.cache_salt,
        id: id.clone(),
    };
    Ok(GenerateCall {
        id: id.value.into(),
        endpoint: "chat",
        model: request.model,
        stream: request.stream,
        prompts: vec![prompt],
        render: Box::new(ChatRender {
            options: request.stream_options,
            ..ChatRender::default()
        }),
        body_len: incoming.body.len(),
        trace: incoming.trace(),
    })
}

/// Writes chat answers.
#[derive(Default)]
struct ChatRender {
    options: StreamOptions,
    tally: Tally,
    /// Which answers have told their role.
    opened: Vec<bool>,
    /// Reused, so that an event costs no copies of id and model.
    chunk: Option<ChatChunk>,
}

// === impl ChatRender ===

impl ChatRender {
    fn send(&mut self, head: &Head, choices: [ChatChunkChoice; 1], events: &mut Events) {
        let usage = self
            .options
            .continuous_usage_stats
            .then(|| self.tally.usage(head));
        let wanted = self.options.include_usage || self.options.continuous_usage_stats;
        let chunk = self.chunk.get_or_insert_with(|| new_chunk(head));
        chunk.choices.clear();
        chunk.choices.extend(choices);
        // Clients with strict decoders want the key in every chunk, or in none.
        chunk.usage = wanted.then_some(usage);
        events.json(chunk);
    }

    fn send_usage(&mut self, head: &Head, usage: Usage, events: &mut Events) {
        let chunk = self.chunk.get_or_insert_with(|| new_chunk(head));
        chunk.choices.clear();
        chunk.usage = Some(Some(usage));
        events.json(chunk);
    }
}

fn new_chunk(head: &Head) -> ChatChunk {
    ChatChunk::new(
        head.id.to_string(),
        head.created,
        head.model.to_string(),
        Vec::new(),
    )
}

impl Render for ChatRender {
    fn delta(&mut self, head: &Head, delta: TextDelta, events: &mut Events) {
        let index = head.index(delta.prompt, delta.sample);
        let number = index as u32;
        self.tally.set(head, index, delta.counts);
        self.opened.resize(head.num_answers(), false);
        if !std::mem::replace(&mut self.opened[index], true) {
            self.send(head, [ChatChunkChoice::opening(number)], events);
        }
        let logprobs = delta
            .logprobs
            .as_ref()
            .map(|rows| chat_logprobs(&head.tokenizer, rows));
        if !delta.text.is_empty() || logprobs.as_ref().is_some_and(|rows| !rows.content.is_empty()) {
            self.send(
                head,
                [ChatChunkChoice::text(number, delta.text, logprobs)],
                events,
            );
        }
        if let Some(end) = delta.end {
            self.send(
                head,
                [ChatChunkChoice::closing(number, end.reason, end.matched)],
                events,
            );
        }
    }

    fn end(&mut self, head: &Head, events: &mut Events) {
        if self.options.include_usage {
            let usage = self.tally.usage(head);
            self.send_usage(head, usage, events);
        }
    }

    fn whole(&mut self, head: &Head, answers: Vec<Answer>) -> serde_json::Result<Vec<u8>> {
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.into_iter().enumerate() {
            self.tally.set(head, index, answer.counts);
            choices.push(ChatChoice {
                index: index as u32,
                finish_reason: answer.reason(),
                matched_stop: answer.matched(),
                logprobs: answer
                    .logprobs
                    .as_ref()
                    .map(|rows| chat_logprobs(&head.tokenizer, rows)),
                message: ChatMessage::assistant(answer.text),
            });
        }
        let usage = self.tally.usage(head);
        let whole = ChatCompletion::new(
            head.id.to_string(),
            head.created,
            head.model.to_string(),
            choices,
            usage,
        );
        serde_json::to_vec(&whole)
    }
}

fn chat_logprobs(tokenizer: &Tokenizer, rows: &LogprobRows) -> ChatLogprobs {
    let tokens = rows.token_ids.iter().zip(&rows.logprobs).enumerate();
    let content = tokens.map(|(position, (&id, logprob))| {
        let (token, bytes) = token_text(tokenizer, id);
        // A token of the answer always has one; what is missing reads as impossible.
        let logprob = logprob.unwrap_or(f32::NEG_INFINITY);
        TokenLogprob {
            token,
            logprob,
            bytes,
            top_logprobs: top_logprobs(tokenizer, rows.top.get(position)),
        }
    });
    ChatLogprobs {
        content: content.collect(),
    }
}
