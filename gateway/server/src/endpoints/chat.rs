//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use smg_api::{ChatChoice, ChatChunkChoice, ChatLogprobs, ChatMessage, ChatRequest, TokenLogprob};
use smg_engine_client::LogprobRows;
use smg_tokenizer::Tokenizer;

use super::{
    Incoming,
    chunks::ChunkWriter,
    usage::{token_text, top_logprobs},
};
use crate::{
    context::Context,
    error::Failure,
    pipeline::{self, Answer, Events, GenerateCall, Head, Input, LogprobWish, PromptCall, Render, TextDelta},
};

pub async fn handle(State(cx): State<Arc<Context>>, request: Request) -> Result<Response, Failure> {
    let incoming = Incoming::json(request)?;
    pipeline::run(&cx, parse(incoming)?).await
}

fn parse(incoming: Incoming) -> Result<GenerateCall, Failure> {
    let request = ChatRequest::parse(&incoming.body)?;
    let (id, routing) = incoming.place(request.routing);
    let wish = LogprobWish {
        start_len: -1,
        top: request.top_logprobs,
        field: "top_logprobs",
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
        routing,
        id: id.clone(),
    };
    Ok(GenerateCall {
        id: id.value.into(),
        endpoint: "chat",
        model: request.model,
        stream: request.stream,
        prompts: vec![prompt],
        render: Box::new(ChatRender {
            chunks: ChunkWriter::new(request.stream_options, request.return_cached_tokens_details),
            opened: Vec::new(),
        }),
        trace: incoming.trace(),
        span: incoming.span,
        arrived: incoming.arrived,
        body: incoming.space,
    })
}

/// Writes chat answers.
struct ChatRender {
    chunks: ChunkWriter<ChatChunkChoice>,
    /// Which answers have told their role.
    opened: Vec<bool>,
}

// === impl ChatRender ===

impl Render for ChatRender {
    fn delta(&mut self, head: &Head, delta: TextDelta, events: &mut Events) {
        let index = head.index(delta.prompt, delta.sample);
        self.chunks.count(head, index, delta.counts);
        self.opened.resize(head.num_answers(), false);
        if !std::mem::replace(&mut self.opened[index], true) {
            let choice = ChatChunkChoice::opening(index as u32);
            self.chunks.send(head, choice, events);
        }
        let rows = delta.logprobs.as_ref().filter(|rows| !rows.token_ids.is_empty());
        let logprobs = rows.map(|rows| chat_logprobs(&head.tokenizer, rows));
        self.chunks.tell(head, delta, logprobs, events);
    }

    fn end(&mut self, head: &Head, events: &mut Events) {
        self.chunks.end(head, events);
    }

    fn whole(&mut self, head: &Head, answers: Vec<Answer>) -> serde_json::Result<Vec<u8>> {
        let mut choices = Vec::with_capacity(answers.len());
        for (index, answer) in answers.into_iter().enumerate() {
            self.chunks.count(head, index, answer.counts);
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
        self.chunks.whole(head, choices)
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
