//! How a connection to a worker is opened. Sockets are injected, so that tests and simulations bring their own.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::address::Address;

/// A future that is boxed to cross an object-safe interface.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A byte stream in both directions.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> Io for T {}

/// Any byte stream.
pub type BoxedIo = Box<dyn Io>;

/// Opens byte streams to workers. Called for the first request to a worker and after every lost connection;
/// the caller bounds the time.
pub trait Connector: Send + Sync + 'static {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<BoxedIo>>;
}

/// Silence after which the system probes a TCP peer, and the pause between its probes.
const TCP_KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const TCP_KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The system's TCP and Unix sockets.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemConnector;

impl Connector for SystemConnector {
    fn connect(&self, address: &Address) -> BoxFuture<'static, io::Result<BoxedIo>> {
        match address.clone() {
            Address::Tcp { host, port } => Box::pin(async move {
                let stream = TcpStream::connect((host.as_str(), port)).await?;
                // Token messages are small and must leave at once.
                stream.set_nodelay(true)?;
                let keepalive = TcpKeepalive::new()
                    .with_time(TCP_KEEPALIVE_IDLE)
                    .with_interval(TCP_KEEPALIVE_INTERVAL);
                SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
                Ok(Box::new(stream) as BoxedIo)
            }),
            Address::Unix(path) => {
                Box::pin(async move { Ok(Box::new(UnixStream::connect(path).await?) as BoxedIo) })
            }
        }
    }
}
