//! The way to an address of the in-memory network, which can be cut off for a while.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

#[derive(Default)]
pub(crate) struct Link(Mutex<State>);

#[derive(Default)]
struct State {
    is_cut: bool,
    /// Tasks that read, write or connect.
    waiting: Vec<Waker>,
}

/// The near end of a connection. While its link is cut neither end hears of the other; nothing is lost.
pub(crate) struct Linked {
    pub io: DuplexStream,
    pub link: Arc<Link>,
}

// === impl Link ===

impl Link {
    pub fn cut(&self) {
        self.0.lock().is_cut = true;
    }

    pub fn mend(&self) {
        let waiting = {
            let mut state = self.0.lock();
            state.is_cut = false;
            std::mem::take(&mut state.waiting)
        };
        waiting.iter().for_each(Waker::wake_by_ref);
    }

    /// Returns once the link is whole.
    pub async fn whole(&self) {
        poll_fn(|cx| self.poll_whole(cx)).await;
    }

    fn poll_whole(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if !state.is_cut {
            return Poll::Ready(());
        }
        if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            state.waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

// === impl Linked ===

impl AsyncRead for Linked {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.link.poll_whole(cx));
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for Linked {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.link.poll_whole(cx));
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.link.poll_whole(cx));
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.link.poll_whole(cx));
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
