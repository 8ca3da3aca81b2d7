//! Answers on their way to clients that may stop to read. What an answer holds is given back in time even if nobody
//! asks for its next byte: the limits run on a task of their own.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Poll, Waker, ready},
    time::Duration,
};

use axum::body::Body;
use bytes::Bytes;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::{
    sync::{CancellationToken, DropGuard},
    task::TaskTracker,
};

/// How long an answer may take to leave.
#[derive(Clone, Copy)]
pub struct Patience {
    /// The end in any case.
    pub until: Option<Instant>,
    /// For a client that reads nothing while there is something to read.
    pub unread: Option<Duration>,
}

/// A body that lets go of `T` and of its own source when it ends, is dropped, or its time is up.
pub struct HeldBody<T> {
    sending: Arc<Mutex<Sending<T>>>,
    _over: DropGuard,
}

struct Sending<T> {
    /// `None` once it has ended or was cut.
    open: Option<(Body, T)>,
    was_cut: bool,
    /// Since when a piece waits for the client to take it.
    unread_since: Option<Instant>,
    /// Of the connection, while it waits for the next piece.
    waker: Option<Waker>,
}

#[derive(Debug, thiserror::Error)]
#[error("the answer took too long to leave")]
struct Cut;

// === impl HeldBody ===

impl<T: Send + 'static> HeldBody<T> {
    pub fn new(inner: Body, held: T, patience: Patience, tasks: &TaskTracker) -> Self {
        let over = CancellationToken::new();
        let sending = Arc::new(Mutex::new(Sending {
            open: Some((inner, held)),
            was_cut: false,
            unread_since: None,
            waker: None,
        }));
        tasks.spawn(
            over.clone()
                .run_until_cancelled_owned(watch(sending.clone(), patience)),
        );
        Self {
            sending,
            _over: over.drop_guard(),
        }
    }
}

async fn watch<T>(sending: Arc<Mutex<Sending<T>>>, patience: Patience) {
    loop {
        let now = Instant::now();
        let unread_since = sending.lock().unread_since.unwrap_or(now);
        let limits = [patience.until, patience.unread.map(|limit| unread_since + limit)];
        match limits.into_iter().flatten().min() {
            Some(end) if end <= now => break,
            Some(end) => tokio::time::sleep_until(end).await,
            None => return,
        }
    }
    let (cut, waker) = {
        let mut sending = sending.lock();
        sending.was_cut = true;
        (sending.open.take(), sending.waker.take())
    };
    if cut.is_some() {
        tracing::debug!("an answer was cut: its client did not read, or its time was up");
    }
    drop(cut);
    waker.into_iter().for_each(Waker::wake);
}

impl<T: Send + 'static> http_body::Body for HeldBody<T> {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let sending = &mut *self.sending.lock();
        let Some((inner, _)) = &mut sending.open else {
            return Poll::Ready(sending.was_cut.then(|| Err(axum::Error::new(Cut))));
        };
        // Whoever asks for more has taken what there was.
        sending.unread_since = None;
        sending.waker = Some(cx.waker().clone());
        let frame = ready!(Pin::new(inner).poll_frame(cx));
        match frame {
            Some(_) => sending.unread_since = Some(Instant::now()),
            None => sending.open = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let sending = self.sending.lock();
        match &sending.open {
            Some((inner, _)) => inner.is_end_stream(),
            None => !sending.was_cut,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.sending.lock().open {
            Some((inner, _)) => inner.size_hint(),
            None => SizeHint::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body_util::BodyExt;

    use super::*;

    const STALL: Duration = Duration::from_secs(7);

    fn endless(pieces: usize) -> Body {
        use futures::StreamExt;
        let ready = stream::iter((0..pieces).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"x"))));
        Body::from_stream(ready.chain(stream::pending()))
    }

    /// A body, and what fires when it has let go.
    fn held(inner: Body, until: Option<Duration>) -> (HeldBody<DropGuard>, CancellationToken, TaskTracker) {
        let (tasks, released) = (TaskTracker::new(), CancellationToken::new());
        let patience = Patience {
            until: until.map(|limit| Instant::now() + limit),
            unread: Some(STALL),
        };
        let body = HeldBody::new(inner, released.clone().drop_guard(), patience, &tasks);
        tasks.close();
        (body, released, tasks)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_loses_its_answer() {
        let (mut body, released, tasks) = held(endless(2), None);
        tokio::time::advance(Duration::from_secs(5)).await;
        body.frame().await.unwrap().unwrap();
        let before = Instant::now();
        released.cancelled().await;
        assert_eq!(before.elapsed().as_secs(), STALL.as_secs());
        assert!(body.frame().await.unwrap().is_err());
        tasks.wait().await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_worker_is_not_the_clients_fault() {
        let (mut body, released, _tasks) = held(endless(1), None);
        body.frame().await.unwrap().unwrap();
        let waiting = tokio::time::timeout(STALL * 10, body.frame()).await;
        assert!(waiting.is_err() && !released.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn the_deadline_ends_what_is_read_too() {
        let limit = Duration::from_secs(20);
        let (mut body, released, _tasks) = held(endless(1), Some(limit));
        body.frame().await.unwrap().unwrap();
        let before = Instant::now();
        assert!(body.frame().await.unwrap().is_err());
        assert_eq!(before.elapsed().as_secs(), limit.as_secs());
        assert!(released.is_cancelled());
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_and_the_drop_release_at_once() {
        let (mut body, released, tasks) = held(Body::from("x"), None);
        body.frame().await.unwrap().unwrap();
        assert!(body.frame().await.is_none());
        assert!(released.is_cancelled());
        drop(body);
        tasks.wait().await;
        let (body, released, tasks) = held(endless(1), None);
        drop(body);
        // Also the task lets go, which may not have seen the drop yet.
        tasks.wait().await;
        assert!(released.is_cancelled());
    }
}
