//! Listening sockets behind a trait, so that tests and simulated networks bring their own.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, lookup_host},
};

/// A byte stream to one client.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Opens listening sockets. A host is a name or an address, that of IPv6 without brackets.
pub trait Binder: Send + Sync + 'static {
    fn bind(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Listener>>>;
}

/// One listening socket. `accept` is cancel-safe.
pub trait Listener: Send + 'static {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Io>>>;
    fn local_addr(&self) -> io::Result<SocketAddr>;
}

/// Binds the operating system's TCP sockets.
pub struct SystemBinder;

struct SystemListener(TcpListener);

/// A host name that stands for no address, inside an `io::Error`.
#[derive(Debug, thiserror::Error)]
#[error("the host name cannot be resolved ({0})")]
pub struct Unresolved(io::Error);

fn unresolved(error: io::Error) -> io::Error {
    io::Error::other(Unresolved(error))
}

/// How long to wait after an accept error such as "too many open files", which would repeat at once.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

// === impl SystemBinder ===

impl Binder for SystemBinder {
    fn bind(&self, host: &str, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Listener>>> {
        let host = host.to_owned();
        async move {
            let listener = match host.parse::<IpAddr>() {
                Ok(ip) => TcpListener::bind((ip, port)).await?,
                Err(_) => {
                    let resolved = lookup_host((host.as_str(), port)).await;
                    let addresses: Vec<_> = resolved.map_err(unresolved)?.collect();
                    TcpListener::bind(addresses.as_slice()).await?
                }
            };
            let listener: Box<dyn Listener> = Box::new(SystemListener(listener));
            Ok(listener)
        }
        .boxed()
    }
}

// === impl SystemListener ===

impl Listener for SystemListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        async move {
            loop {
                match self.0.accept().await {
                    Ok((stream, _peer)) => {
                        stream.set_nodelay(true)?;
                        let io: Box<dyn Io> = Box::new(stream);
                        return Ok(io);
                    }
                    Err(error) if is_connection_error(&error) => {}
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
                        tokio::time::sleep(ACCEPT_BACKOFF).await;
                    }
                }
            }
        }
        .boxed()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

/// True for errors that concern one client and say nothing about the listener.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
