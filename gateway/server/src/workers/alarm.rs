//! Tells a worker's task at once that a connection to the worker ended, also while no request uses it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context as TaskContext, Poll},
};

use smg_engine_client::{Address, BoxFuture, BoxedIo, Connector};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
};

/// Rings when a connection to one worker broke.
#[derive(Default)]
pub struct Alarm {
    rung: AtomicBool,
    num_rings: AtomicU64,
    bell: Notify,
}

/// Opens connections that ring when they end, for whatever reason.
pub struct AlarmedConnector {
    pub inner: Arc<dyn Connector>,
    pub alarm: Arc<Alarm>,
}

struct AlarmedIo {
    io: BoxedIo,
    alarm: Arc<Alarm>,
}

// === impl Alarm ===

impl Alarm {
    pub fn ring(&self) {
        self.num_rings.fetch_add(1, Ordering::Relaxed);
        self.rung.store(true, Ordering::Relaxed);
        self.bell.notify_one();
    }

    /// Makes the worker be probed soon; no connection to it is known to have ended.
    pub fn nudge(&self) {
        self.bell.notify_one();
    }

    /// Whether it rang since the last call.
    pub fn take(&self) -> bool {
        self.rung.swap(false, Ordering::Relaxed)
    }

    /// How often it rang so far.
    pub fn num_rings(&self) -> u64 {
        self.num_rings.load(Ordering::Relaxed)
    }

    /// Returns when it rings or is nudged, or was since the last time.
    pub async fn heard(&self) {
        self.bell.notified().await;
    }
}

// === impl AlarmedConnector ===

impl Connector for AlarmedConnector {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<BoxedIo>> {
        let (opening, alarm) = (self.inner.connect(address), self.alarm.clone());
        Box::pin(async move {
            let io = opening.await?;
            Ok(Box::new(AlarmedIo { io, alarm }) as BoxedIo)
        })
    }
}

// === impl AlarmedIo ===

impl Drop for AlarmedIo {
    fn drop(&mut self) {
        self.alarm.ring();
    }
}

impl AsyncRead for AlarmedIo {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl AsyncWrite for AlarmedIo {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut TaskContext<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut TaskContext<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}
