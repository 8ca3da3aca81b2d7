//! `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
};
use smg_api::{
    CallForm, ChatChoice, ChatChunkChoice, ChatLogprobs, ChatMessage, ChatRequest, ChunkChoice, FinishReason,
    TokenLogprob, ToolCall,
};
use smg_engine_client::LogprobRows;
use smg_tokenizer::Tokenizer;

use super::{
    Incoming,
    chunks::ChunkWriter,
    tool_calls::{CallParser, CallPiece},
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

pub fn parse(incoming: Incoming) -> Result<GenerateCall, Failure> {
    let request = ChatRequest::parse(&incoming.body)?;
    let (id, routing) = incoming.place(request.routing)?;
    let wish = LogprobWish {
        start_len: -1,
        top: request.top_logprobs,
        field: "top_logprobs",
        token_ids: Vec::new(),
    };
    let prompt = PromptCall {
        input: Input::Chat {
            messages: request.messages,
            template: request.template,
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
            form: request.calls,
            parsers: Vec::new(),
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
    /// How answers call functions, where they have to.
    form: Option<CallForm>,
    /// One for each answer, then.
    parsers: Vec<CallParser>,
}

// === impl ChatRender ===

impl ChatRender {
    /// The news of an answer that calls functions: a chunk for each piece of a call, and one with the reason of the end.
    fn tell_calls(
        &mut self,
        head: &Head,
        delta: TextDelta,
        mut logprobs: Option<ChatLogprobs>,
        events: &mut Events,
    ) -> Result<(), Failure> {
        let index = head.index(delta.prompt, delta.sample);
        let number = index as u32;
        for piece in self.parsers[index].push(&delta.text)? {
            let mut choice = match piece {
                CallPiece::Opened { position, name } => {
                    ChatChunkChoice::call(number, position, call_id(), name)
                }
                CallPiece::Arguments { position, text } => ChatChunkChoice::arguments(number, position, text),
            };
            choice.logprobs = logprobs.take();
            self.chunks.send(head, choice, events);
        }
        if let Some(logprobs) = logprobs {
            self.chunks
                .send(head, ChatChunkChoice::silent(number, logprobs), events);
        }
        if let Some(end) = delta.end {
            let reason = self.parsers[index].reason(end.reason);
            let choice = ChatChunkChoice::closing(number, reason, end.matched);
            self.chunks.send(head, choice, events);
        }
        Ok(())
    }
}

impl Render for ChatRender {
    fn delta(&mut self, head: &Head, delta: TextDelta, events: &mut Events) -> Result<(), Failure> {
        let index = head.index(delta.prompt, delta.sample);
        self.chunks.count(head, index, delta.counts);
        self.opened.resize(head.num_answers(), false);
        if !std::mem::replace(&mut self.opened[index], true) {
            let choice = ChatChunkChoice::opening(index as u32, self.form.is_some());
            self.chunks.send(head, choice, events);
        }
        let rows = delta.logprobs.as_ref().filter(|rows| !rows.token_ids.is_empty());
        let logprobs = rows.map(|rows| chat_logprobs(&head.tokenizer, rows));
        if let Some(form) = &self.form {
            self.parsers
                .resize_with(head.num_answers(), || CallParser::new(form.clone()));
            return self.tell_calls(head, delta, logprobs, events);
        }
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
            let (reason, matched_stop) = (answer.reason(), answer.matched());
            let logprobs = answer.logprobs.as_ref();
            let logprobs = logprobs.map(|rows| chat_logprobs(&head.tokenizer, rows));
            let (message, finish_reason) = match &self.form {
                Some(form) => whole_calls(CallParser::new(form.clone()), &answer.text, reason)?,
                None => (ChatMessage::assistant(answer.text), reason),
            };
            choices.push(ChatChoice {
                index: index as u32,
                message,
                logprobs,
                finish_reason,
                matched_stop,
            });
        }
        self.chunks.whole(head, choices)
    }
}

/// The calls of a whole answer, and why it ended.
fn whole_calls(
    mut parser: CallParser,
    text: &str,
    reason: FinishReason,
) -> Result<(ChatMessage, FinishReason), Failure> {
    let mut calls: Vec<ToolCall> = Vec::new();
    for piece in parser.push(text)? {
        match (piece, calls.last_mut()) {
            (CallPiece::Opened { name, .. }, _) => calls.push(ToolCall::new(call_id(), name)),
            (CallPiece::Arguments { text, .. }, Some(call)) => call.function.arguments.push_str(&text),
            (CallPiece::Arguments { .. }, None) => {}
        }
    }
    Ok((ChatMessage::calling(calls), parser.reason(reason)))
}

fn call_id() -> String {
    format!("call_{:016x}{:08x}", rand::random::<u64>(), rand::random::<u32>())
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
