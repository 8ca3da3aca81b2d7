//! Sends an answer: as server-sent events, or as the fold of the same news to one JSON body.

use std::{
    convert::Infallible,
    future::poll_fn,
    pin::Pin,
    task::{Context as TaskContext, Poll},
};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::Stream;
use http::header;
use smg_api::ApiError;
use tokio::time::Instant;

use super::{
    call::{Answer, Events, TextDelta},
    detokenise::TextStream,
};
use crate::{error::Failure, layers::admission::Spent, telemetry::TokenCounts};

/// Events that are ready together leave in one write, up to this many bytes.
const MAX_WRITE: usize = 16 << 10;

pub async fn run(text: TextStream) -> Result<Response, Failure> {
    let prompts = text.head.prompts.iter();
    let spent = Spent::new(prompts.map(|prompt| u64::from(prompt.num_tokens)).sum());
    let mut news = News {
        text,
        meter: Meter {
            spent: spent.clone(),
            ..Meter::default()
        },
    };
    // A failure before the first news is an answer of its own; after it, the status is out.
    let first = match news.next().await {
        Some(first) => first?,
        None => {
            let error = ApiError::bad_gateway("the worker ended the stream without an answer");
            news.text.generation.failed(&error.code);
            return Err(error.into());
        }
    };
    let mut response = if news.text.stream {
        stream(news, first)
    } else {
        fold(news, first).await?
    };
    response.extensions_mut().insert(spent);
    Ok(response)
}

fn stream(news: News, first: TextDelta) -> Response {
    let body = Body::from_stream(EventStream {
        news,
        first: Some(first),
        events: Events::default(),
        over: false,
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
        // Proxies that buffer would turn the stream into one late block.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, body).into_response()
}

async fn fold(mut news: News, first: TextDelta) -> Result<Response, Failure> {
    let mut answers = Answer::all_of(&news.text.head);
    let mut next = Some(first);
    while let Some(delta) = next {
        let index = news.text.head.index(delta.prompt, delta.sample);
        if let Some(answer) = answers.get_mut(index) {
            answer.absorb(delta);
        }
        next = news.next().await.transpose()?;
    }
    let TextStream { head, render, .. } = &mut news.text;
    let body = render.whole(head, answers)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The news of a call, measured as they pass.
struct News {
    text: TextStream,
    meter: Meter,
}

impl News {
    async fn next(&mut self) -> Option<Result<TextDelta, Failure>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut TaskContext<'_>) -> Poll<Option<Result<TextDelta, Failure>>> {
        let next = self.text.poll_delta(cx);
        match &next {
            Poll::Ready(Some(Ok(delta))) => self.meter.see(delta, &mut self.text),
            Poll::Ready(Some(Err(failure))) => self.text.generation.failed(failure.code()),
            Poll::Ready(None) | Poll::Pending => {}
        }
        next
    }
}

/// Times and counts of one call.
#[derive(Default)]
struct Meter {
    first_token: Option<Instant>,
    num_ended: usize,
    tokens: TokenCounts,
    spent: Spent,
}

impl Meter {
    fn see(&mut self, delta: &TextDelta, text: &mut TextStream) {
        self.spent.add(delta.token_ids.len() as u64);
        let started = text.head.started;
        let first_token = *self.first_token.get_or_insert_with(|| {
            let now = Instant::now();
            text.generation.first_token(now - started);
            now
        });
        if delta.end.is_none() {
            return;
        }
        self.num_ended += 1;
        self.tokens.completion += u64::from(delta.counts.completion);
        if delta.sample == 0 {
            self.tokens.prompt += u64::from(delta.counts.prompt);
            self.tokens.cached += u64::from(delta.counts.cached);
        }
        if self.num_ended == text.head.num_answers() {
            let now = Instant::now();
            text.generation
                .finished(now - started, now - first_token, self.tokens);
        }
    }
}

/// The body of a streamed answer.
struct EventStream {
    news: News,
    first: Option<TextDelta>,
    events: Events,
    over: bool,
}

impl EventStream {
    fn write(&mut self, next: Option<Result<TextDelta, Failure>>) {
        let TextStream {
            head,
            render,
            generation,
            ..
        } = &mut self.news.text;
        let failed = match next {
            Some(Ok(delta)) => match render.delta(head, delta, &mut self.events) {
                Ok(()) => return,
                Err(failure) => Some(failure),
            },
            Some(Err(failure)) => Some(failure),
            None => {
                render.end(head, &mut self.events);
                None
            }
        };
        // What was sent stays without a reason for its end: the answer is not whole.
        if let Some(failure) = failed {
            generation.failed(failure.code());
            head.span.fail(failure.code());
            self.events.raw(&failure.sse_event());
        }
        self.events.done();
        self.over = true;
    }
}

impl Stream for EventStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<Option<Self::Item>> {
        if let Some(first) = self.first.take() {
            self.write(Some(Ok(first)));
        }
        while !self.over && self.events.0.len() < MAX_WRITE {
            match self.news.poll(cx) {
                Poll::Ready(next) => self.write(next),
                Poll::Pending if self.events.0.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if self.events.0.is_empty() {
            return Poll::Ready(None);
        }
        Poll::Ready(Some(Ok(self.events.0.split().freeze())))
    }
}
