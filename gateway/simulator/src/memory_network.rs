//! A network inside the process: connections without sockets, so that tests with a paused clock never wait for
//! the system.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::Stream;
use parking_lot::Mutex;
use smg_engine_client::{Address, BoxFuture, BoxedIo, Connector};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;

use crate::link::{Link, Linked};

/// Bytes in flight per direction of a connection.
const BUFFER_BYTES: usize = 256 << 10;

/// Listeners by address. Clones share them.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    places: Arc<Mutex<HashMap<Address, Place>>>,
    links: Arc<Mutex<HashMap<Address, Arc<Link>>>>,
}

enum Place {
    Listener(mpsc::UnboundedSender<DuplexStream>),
    BlackHole,
}

impl MemoryNetwork {
    pub fn new() -> Self {
        Self::default()
    }

    /// Accepts connections at an address until the listener is dropped; takes over from an earlier listener.
    pub fn listen(&self, address: Address) -> MemoryListener {
        let (sender, accepted) = mpsc::unbounded_channel();
        self.places.lock().insert(address, Place::Listener(sender));
        MemoryListener { accepted }
    }

    /// Leaves every attempt to connect to an address without an answer.
    pub fn swallow(&self, address: Address) {
        self.places.lock().insert(address, Place::BlackHole);
    }

    /// Holds back what goes to an address or comes from it, connections that are open and new ones alike.
    pub fn cut_off(&self, address: &Address) {
        self.link(address).cut();
    }

    /// Lets pass what was held back.
    pub fn rejoin(&self, address: &Address) {
        self.link(address).mend();
    }

    fn link(&self, address: &Address) -> Arc<Link> {
        Arc::clone(self.links.lock().entry(address.clone()).or_default())
    }

    /// A connection, unless nobody listens; `None`: no answer ever.
    fn open(&self, address: &Address) -> Option<io::Result<DuplexStream>> {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        match self.places.lock().get(address) {
            Some(Place::BlackHole) => None,
            Some(Place::Listener(listener)) => {
                let (near, far) = tokio::io::duplex(BUFFER_BYTES);
                Some(listener.send(far).map(|()| near).map_err(|_| refused()))
            }
            None => Some(Err(refused())),
        }
    }
}

impl Connector for MemoryNetwork {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<BoxedIo>> {
        let (network, address) = (self.clone(), address.clone());
        Box::pin(async move {
            let link = network.link(&address);
            link.whole().await;
            let Some(opened) = network.open(&address) else {
                return std::future::pending().await;
            };
            Ok(Box::new(Linked { io: opened?, link }) as BoxedIo)
        })
    }
}

/// The accepted connections of an address.
pub struct MemoryListener {
    accepted: mpsc::UnboundedReceiver<DuplexStream>,
}

impl Stream for MemoryListener {
    type Item = io::Result<DuplexStream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut()
            .accepted
            .poll_recv(cx)
            .map(|connection| connection.map(Ok))
    }
}
