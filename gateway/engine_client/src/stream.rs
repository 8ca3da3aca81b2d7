//! The stream of one generation, and what happens when its reader leaves.

use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Stream;
use tokio::runtime::Handle;
use tokio::time::Sleep;
use tonic::{Response, Status, Streaming};

use crate::client::EngineClient;
use crate::connector::BoxFuture;
use crate::convert::{Ending, ending, token_chunk};
use crate::error::{CallSite, EngineError};
use crate::event::{Completion, EngineEvent, TokenChunk};
use crate::proto::scheduler::generate_response::Response as Payload;
use crate::proto::scheduler::{GenerateComplete, GenerateResponse, GenerateStreamChunk};

/// Time for a worker to close a call after its last complete message; then the call is cancelled.
const CLOSING_GRACE: Duration = Duration::from_secs(1);

/// What the engine is told when a reader leaves.
const DROPPED: &str = "the client left";

/// The worker's answer to the call, still to come.
type PendingCall = BoxFuture<'static, Result<Response<Streaming<GenerateResponse>>, Status>>;

/// The events of one generation. It starts with the first poll and ends with `None` after every answer
/// completed, or after the first error.
///
/// Dropped earlier, in whatever phase, it cancels the rpc and has the worker told to abort: some engines heed
/// only the one, some only the other.
pub struct GenerateStream {
    call: Call,
    answers: Answers,
    /// Events that are due before the next message is read.
    due: VecDeque<EngineEvent>,
    deadline: Option<Pin<Box<Sleep>>>,
    site: CallSite,
    on_drop: AbortOnDrop,
}

enum Call {
    Pending(PendingCall),
    Open(Box<Streaming<GenerateResponse>>),
    Closed,
}

impl GenerateStream {
    pub(crate) fn new(call: PendingCall, num_answers: u32, site: CallSite, on_drop: AbortOnDrop) -> Self {
        Self {
            call: Call::Pending(call),
            answers: Answers::new(num_answers),
            due: VecDeque::new(),
            deadline: site.limit.map(|limit| Box::pin(tokio::time::sleep(limit))),
            site,
            on_drop,
        }
    }

    fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<GenerateResponse, Status>>> {
        loop {
            match &mut self.call {
                Call::Pending(pending) => {
                    self.on_drop.arm();
                    match ready!(pending.as_mut().poll(cx)) {
                        Ok(response) => self.call = Call::Open(Box::new(response.into_inner())),
                        Err(status) => return Poll::Ready(Some(Err(status))),
                    }
                }
                Call::Open(messages) => return Pin::new(messages.as_mut()).poll_next(cx),
                Call::Closed => return Poll::Ready(None),
            }
        }
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<EngineEvent, EngineError>>> {
        loop {
            if let Some(event) = self.due.pop_front() {
                return Poll::Ready(Some(Ok(event)));
            }
            if self.answers.all_complete() {
                return self.poll_end(cx).map(|()| None);
            }
            if self.deadline_passed(cx) {
                return Poll::Ready(Some(Err(self.site.deadline())));
            }
            match ready!(self.poll_message(cx)) {
                Some(Ok(message)) => {
                    if let Err(violation) = self.answers.read(message, &mut self.due) {
                        return Poll::Ready(Some(Err(self.site.protocol(violation))));
                    }
                    if self.answers.all_complete() {
                        self.on_drop.disarm();
                        self.deadline = Some(Box::pin(tokio::time::sleep(CLOSING_GRACE)));
                    }
                }
                Some(Err(status)) => return Poll::Ready(Some(Err(self.site.explain(&status)))),
                None => return Poll::Ready(self.ended().map(Err)),
            }
        }
    }

    /// Waits for the worker to close a call whose answers are complete. What it still says does not matter.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.deadline_passed(cx) {
            if !matches!(ready!(self.poll_message(cx)), Some(Ok(_))) {
                break;
            }
        }
        self.call = Call::Closed;
        self.deadline = None;
        Poll::Ready(())
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> bool {
        self.deadline
            .as_mut()
            .is_some_and(|deadline| deadline.as_mut().poll(cx).is_ready())
    }

    /// What the end of the messages means.
    fn ended(&mut self) -> Option<EngineError> {
        let closed = matches!(self.call, Call::Closed);
        self.call = Call::Closed;
        (!closed && !self.answers.all_complete()).then(|| {
            // The worker ended the call: there is nothing left to abort.
            self.on_drop.disarm();
            self.site.protocol(self.answers.missing())
        })
    }

    fn fail(&mut self, error: &EngineError) {
        self.call = Call::Closed;
        self.due.clear();
        self.deadline = None;
        if error.leaves_work_behind() {
            self.on_drop.abort(&error.to_string());
        }
        self.on_drop.disarm();
    }
}

impl Stream for GenerateStream {
    type Item = Result<EngineEvent, EngineError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let stream = self.get_mut();
        let item = ready!(stream.poll_event(cx));
        if let Some(Err(error)) = &item {
            stream.fail(error);
        }
        Poll::Ready(item)
    }
}

/// Sends one Abort when dropped while armed.
pub(crate) struct AbortOnDrop {
    client: EngineClient,
    request_id: String,
    runtime: Handle,
    state: AbortState,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AbortState {
    /// The worker has not heard of the request.
    Unsent,
    Armed,
    Disarmed,
}

impl AbortOnDrop {
    pub fn new(client: EngineClient, request_id: String) -> Self {
        Self {
            client,
            request_id,
            runtime: Handle::current(),
            state: AbortState::Unsent,
        }
    }

    /// The request is about to be sent.
    fn arm(&mut self) {
        if self.state == AbortState::Unsent {
            self.state = AbortState::Armed;
        }
    }

    fn disarm(&mut self) {
        self.state = AbortState::Disarmed;
    }

    fn abort(&mut self, reason: &str) {
        if std::mem::replace(&mut self.state, AbortState::Disarmed) != AbortState::Armed {
            return;
        }
        let (client, request_id, reason) = (
            self.client.clone(),
            std::mem::take(&mut self.request_id),
            reason.to_owned(),
        );
        let tasks = client.tasks().clone();
        tasks.spawn_on(
            async move { client.abort_abandoned(&request_id, &reason).await },
            &self.runtime,
        );
    }
}

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.abort(DROPPED);
    }
}

/// What is known of each of the n answers.
struct Answers {
    progress: Vec<Progress>,
    num_open: usize,
}

#[derive(Clone, Default)]
struct Progress {
    num_tokens: usize,
    has_input_logprobs: bool,
    complete: bool,
}

impl Answers {
    fn new(num_answers: u32) -> Self {
        let num_answers = num_answers.max(1) as usize;
        Self {
            progress: vec![Progress::default(); num_answers],
            num_open: num_answers,
        }
    }

    fn all_complete(&self) -> bool {
        self.num_open == 0
    }

    fn missing(&self) -> String {
        let missing: Vec<usize> = (0..self.progress.len())
            .filter(|i| !self.progress[*i].complete)
            .collect();
        format!("the stream ended without a complete message for answer {missing:?}")
    }

    /// Turns a message into events. Fails with a sentence about what the protocol does not allow.
    fn read(&mut self, message: GenerateResponse, due: &mut VecDeque<EngineEvent>) -> Result<(), String> {
        match message.response {
            Some(Payload::Chunk(chunk)) => self.read_chunk(chunk, due),
            Some(Payload::Complete(complete)) => self.read_complete(complete, due),
            // A payload of another protocol version; what it meant shows in how the stream ends.
            None => Ok(()),
        }
    }

    fn read_chunk(
        &mut self,
        chunk: GenerateStreamChunk,
        due: &mut VecDeque<EngineEvent>,
    ) -> Result<(), String> {
        let progress = self.open_answer(chunk.index)?;
        progress.num_tokens += chunk.token_ids.len();
        progress.has_input_logprobs |= chunk.input_logprobs.is_some();
        due.push_back(EngineEvent::Tokens(token_chunk(chunk)));
        Ok(())
    }

    fn read_complete(
        &mut self,
        complete: GenerateComplete,
        due: &mut VecDeque<EngineEvent>,
    ) -> Result<(), String> {
        let progress = self.open_answer(complete.index)?;
        let ending = ending(complete)?;
        progress.complete = true;
        let progress = progress.clone();
        self.num_open -= 1;
        let (rest, completion) = rest_of_answer(ending, &progress);
        due.extend(rest.map(EngineEvent::Tokens));
        due.push_back(EngineEvent::Complete(completion));
        Ok(())
    }

    fn open_answer(&mut self, index: u32) -> Result<&mut Progress, String> {
        let num_answers = self.progress.len();
        match self.progress.get_mut(index as usize) {
            Some(progress) if progress.complete => {
                Err(format!("a message for answer {index} after its complete message"))
            }
            Some(progress) => Ok(progress),
            None => Err(format!(
                "a message for answer {index}, asked for were {num_answers}"
            )),
        }
    }
}

/// What only the complete message carries, as a last chunk: engines without a streaming mode send everything
/// there.
fn rest_of_answer(ending: Ending, progress: &Progress) -> (Option<TokenChunk>, Completion) {
    let Ending {
        completion,
        output_logprobs,
        input_logprobs,
    } = ending;
    let num_ids = completion.output_ids.len();
    let token_ids = completion
        .output_ids
        .get(progress.num_tokens..)
        .unwrap_or_default()
        .to_vec();
    let input_logprobs = input_logprobs.filter(|_| !progress.has_input_logprobs);
    if token_ids.is_empty() && input_logprobs.is_none() {
        return (None, completion);
    }
    let output_logprobs = output_logprobs
        .filter(|rows| !token_ids.is_empty() && rows.logprobs.len() == num_ids)
        .map(|rows| rows.tail(progress.num_tokens));
    let chunk = TokenChunk {
        index: completion.index,
        token_ids,
        prompt_tokens: completion.prompt_tokens,
        completion_tokens: completion.completion_tokens,
        cached_tokens: completion.cached_tokens,
        output_logprobs,
        input_logprobs,
        cached_tiers: completion.cached_tiers,
        times: completion.times,
    };
    (Some(chunk), completion)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::scheduler::OutputLogProbs;

    fn chunk(index: u32, token_ids: &[u32]) -> GenerateResponse {
        let chunk = GenerateStreamChunk {
            index,
            token_ids: token_ids.to_vec(),
            ..Default::default()
        };
        GenerateResponse {
            request_id: String::new(),
            response: Some(Payload::Chunk(chunk)),
        }
    }

    fn complete(index: u32, output_ids: &[u32]) -> GenerateResponse {
        let output_logprobs = Some(OutputLogProbs {
            token_logprobs: output_ids.iter().map(|id| -(*id as f32)).collect(),
            token_ids: output_ids.to_vec(),
            ..Default::default()
        });
        let complete = GenerateComplete {
            index,
            output_ids: output_ids.to_vec(),
            output_logprobs,
            ..GenerateComplete::default()
        };
        GenerateResponse {
            request_id: String::new(),
            response: Some(Payload::Complete(complete)),
        }
    }

    /// The events of messages, tokens as lists and completions as `None`, or the first violation.
    fn read(num_answers: u32, messages: Vec<GenerateResponse>) -> Result<Vec<Option<TokenChunk>>, String> {
        let (mut answers, mut due) = (Answers::new(num_answers), VecDeque::new());
        for message in messages {
            answers.read(message, &mut due)?;
        }
        let events = due.into_iter().map(|event| match event {
            EngineEvent::Tokens(chunk) => Some(chunk),
            EngineEvent::Complete(_) => None,
        });
        Ok(events.collect())
    }

    #[test]
    fn tokens_in_chunks_are_not_repeated_at_the_end() {
        let events = read(1, vec![chunk(0, &[1, 2]), complete(0, &[1, 2])]).unwrap();
        assert_eq!(events.len(), 2);
        assert!(events[1].is_none());
    }

    #[test]
    fn what_no_chunk_carried_comes_before_the_end_with_its_rows() {
        let events = read(1, vec![chunk(0, &[1]), complete(0, &[1, 2, 3])]).unwrap();
        let rest = events[1].as_ref().unwrap();
        assert_eq!(rest.token_ids, [2, 3]);
        let rows = rest.output_logprobs.as_ref().unwrap();
        assert_eq!(
            (rows.token_ids.as_slice(), rows.logprobs.as_slice()),
            ([2, 3].as_slice(), [Some(-2.0), Some(-3.0)].as_slice())
        );
    }

    #[test]
    fn messages_after_the_end_of_their_answer_are_violations() {
        let violation = read(2, vec![complete(0, &[]), chunk(0, &[1])]).unwrap_err();
        assert_eq!(violation, "a message for answer 0 after its complete message");
    }

    #[test]
    fn answers_that_nobody_asked_for_are_violations() {
        assert_eq!(
            read(1, vec![chunk(1, &[1])]).unwrap_err(),
            "a message for answer 1, asked for were 1"
        );
    }

    #[test]
    fn unknown_payloads_are_passed_over() {
        assert_eq!(read(1, vec![GenerateResponse::default()]).unwrap(), []);
    }
}
