//! The life of a gateway: build, listen, serve, drain.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use smg_config::GatewayConfig;
use smg_engine_client::{Connector, SystemConnector};
use tokio::sync::mpsc;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    app,
    connections::Connections,
    context::Context,
    reload,
    transport::{Binder, Listener, SystemBinder, Unresolved},
    workers::RosterError,
};

/// Connections that ended their last answer get this long to close.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Aborts that are still on their way to workers get this long at the end.
const TASKS_LIMIT: Duration = Duration::from_secs(6);

/// What the gateway takes from the world outside.
pub struct Environment {
    pub binder: Arc<dyn Binder>,
    pub connector: Arc<dyn Connector>,
    pub shutdown: Shutdown,
    /// Configurations to take over while the gateway runs.
    pub reloads: mpsc::Receiver<Box<GatewayConfig>>,
    /// Everything that the gateway runs in the background. Waited for before `serve` returns.
    pub tasks: TaskTracker,
    /// Called once, when the gateway listens.
    pub on_listening: Box<dyn FnOnce(Listening) + Send>,
}

/// How a gateway is told to end.
#[derive(Clone, Default)]
pub struct Shutdown {
    /// Finish what runs, take nothing new.
    pub drain: CancellationToken,
    /// End at once.
    pub now: CancellationToken,
}

/// Where a gateway listens.
#[derive(Clone, Copy, Debug)]
pub struct Listening {
    pub address: SocketAddr,
    pub num_workers: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("cannot listen on {}:{port}: {source}; {}", in_url(host), advice(source, *flags))]
    Bind {
        host: String,
        port: u16,
        flags: ListenFlags,
        source: io::Error,
    },
    #[error(transparent)]
    Workers(#[from] RosterError),
    #[error("--policy: {0}")]
    Policy(String),
    #[error("--chat-template: cannot read {path}: {source}")]
    ChatTemplate { path: String, source: io::Error },
    #[error("--otlp-traces-endpoint: {0}")]
    Collector(#[from] opentelemetry_otlp::ExporterBuildError),
    #[error("cannot set up metrics: {0}")]
    Metrics(#[from] metrics_exporter_prometheus::BuildError),
}

/// The options that a listener's address comes from.
#[derive(Clone, Copy, Debug)]
pub struct ListenFlags {
    host: &'static str,
    port: &'static str,
}

const MAIN_FLAGS: ListenFlags = ListenFlags {
    host: "--host",
    port: "--port",
};

const METRICS_FLAGS: ListenFlags = ListenFlags {
    host: "--prometheus-host",
    port: "--prometheus-port",
};

/// Serves until told to end; returns after everything that ran has ended.
pub async fn serve(config: GatewayConfig, env: Environment) -> Result<(), ServeError> {
    let background = CancellationToken::new();
    let cx = Arc::new(Context::new(&config, &env, &background)?);
    let server = &config.server;
    let main = bind(&*env.binder, &server.host, server.port, MAIN_FLAGS).await?;
    let metrics = match config.metrics.prometheus_port {
        Some(port) => {
            let host = &config.metrics.prometheus_host;
            Some(bind(&*env.binder, host, port, METRICS_FLAGS).await?)
        }
        None => None,
    };
    cx.roster.start(&server.worker_urls).await?;
    cx.telemetry.keep_up(&env.tasks, background.clone());

    let connections = Connections::new(&cx.telemetry);
    let listening = Listening {
        address: main
            .local_addr()
            .unwrap_or_else(|_| SocketAddr::from(([0, 0, 0, 0], server.port))),
        num_workers: cx.fleet.members().len(),
    };
    connections.accept(main, app::router(cx.clone()), &env.tasks);
    if let Some(listener) = metrics {
        connections.accept(listener, app::metrics_router(cx.clone()), &env.tasks);
    }
    let reloads = reload::keep_up(cx.clone(), config.clone(), env.reloads);
    env.tasks.spawn({
        let background = background.clone();
        async move { background.run_until_cancelled(reloads).await }
    });
    (env.on_listening)(listening);

    let grace = config.requests.shutdown_grace_period();
    let shutdown = env.shutdown.clone();
    if shutdown
        .now
        .run_until_cancelled(drain(&cx, &shutdown, &connections, grace))
        .await
        .is_none()
    {
        tracing::warn!(running = cx.lifecycle.num_running(), "ending at once");
    }
    background.cancel();
    connections.cut();
    cx.spans.end().await;
    env.tasks.close();
    let ended = tokio::time::timeout(TASKS_LIMIT, env.tasks.wait());
    if shutdown
        .now
        .run_until_cancelled(ended)
        .await
        .is_some_and(|ended| ended.is_err())
    {
        tracing::warn!(tasks = env.tasks.len(), "background work did not end in time");
    }
    Ok(())
}

async fn bind(
    binder: &dyn Binder,
    host: &str,
    port: u16,
    flags: ListenFlags,
) -> Result<Box<dyn Listener>, ServeError> {
    let bound = binder.bind(host, port).await;
    bound.map_err(|source| ServeError::Bind {
        host: host.to_owned(),
        port,
        flags,
        source,
    })
}

/// An address of IPv6 has brackets before a port.
fn in_url(host: &str) -> String {
    if host.contains(':') {
        format!("[{host}]")
    } else {
        host.to_owned()
    }
}

/// What to do about an address that cannot be had.
fn advice(error: &io::Error, flags: ListenFlags) -> String {
    let (host, port) = (flags.host, flags.port);
    if error.get_ref().is_some_and(|why| why.is::<Unresolved>()) {
        return format!("{host} must be an address of this machine, such as 0.0.0.0, or a name of one");
    }
    match error.kind() {
        io::ErrorKind::AddrInUse => format!("choose another {port} or end the program that has it"),
        io::ErrorKind::AddrNotAvailable => {
            format!("{host} is no address of this machine; 0.0.0.0 stands for all that it has")
        }
        io::ErrorKind::PermissionDenied => {
            format!("choose a {port} of 1024 or more, or run with the right to open this one")
        }
        _ => format!("check {host} and {port}"),
    }
}

/// Waits for the signal, then for the generations that run.
async fn drain(cx: &Context, shutdown: &Shutdown, connections: &Connections, grace: Duration) {
    shutdown.drain.cancelled().await;
    // Readiness turns off first; the listener stays open to say so.
    cx.lifecycle.drain();
    let running = cx.lifecycle.num_running();
    if running > 0 {
        tracing::info!(
            running,
            ?grace,
            "draining: running answers may end; a second signal ends at once"
        );
    }
    if tokio::time::timeout(grace, cx.lifecycle.finished())
        .await
        .is_err()
    {
        tracing::warn!(running = cx.lifecycle.num_running(), "the grace period is over");
        cx.lifecycle.end();
        // Long enough for each client to read that its answer ended early.
        if tokio::time::timeout(CLOSE_LIMIT, cx.lifecycle.finished())
            .await
            .is_err()
        {
            return;
        }
    }
    connections.close();
    if tokio::time::timeout(CLOSE_LIMIT, connections.closed())
        .await
        .is_err()
    {
        tracing::debug!("some connections did not close in time");
    }
}

// === impl Environment ===

impl Environment {
    /// The operating system's sockets.
    pub fn system(shutdown: Shutdown, on_listening: impl FnOnce(Listening) + Send + 'static) -> Self {
        Self {
            binder: Arc::new(SystemBinder),
            connector: Arc::new(SystemConnector),
            shutdown,
            reloads: mpsc::channel(1).1,
            tasks: TaskTracker::new(),
            on_listening: Box::new(on_listening),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a machine without IPv6 (EAFNOSUPPORT).
    const NO_SUCH_FAMILY: i32 = 97;

    #[tokio::test]
    async fn an_ipv6_address_with_brackets_is_listened_on() {
        let map = serde_json::json!({"host": "[::1]"});
        let config = smg_config::from_map(map.as_object().unwrap()).unwrap();
        match bind(&SystemBinder, &config.server.host, 0, MAIN_FLAGS).await {
            Ok(listener) => {
                let address = listener.local_addr().unwrap();
                assert!(
                    address.to_string().starts_with("[::1]:") && address.port() > 0,
                    "{address}"
                );
                let port = address.port();
                let message = refusal("::1", port).await;
                let start = format!("cannot listen on [::1]:{port}: ");
                assert!(message.starts_with(&start), "{message}");
            }
            // Its loopback has no such address: the system was asked for an address, nobody for a name.
            Err(ServeError::Bind { source, .. }) => assert!(
                source.kind() == io::ErrorKind::AddrNotAvailable
                    || source.raw_os_error() == Some(NO_SUCH_FAMILY),
                "{source:?}"
            ),
            Err(other) => panic!("{other}"),
        }
    }

    async fn refusal(host: &str, port: u16) -> String {
        let bound = bind(&SystemBinder, host, port, MAIN_FLAGS).await;
        bound.err().unwrap().to_string()
    }

    #[tokio::test]
    async fn what_is_wrong_with_an_address_is_told_by_its_option() {
        let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let message = refusal("127.0.0.1", port).await;
        assert!(message.contains("choose another --port"), "{message}");
        // Of a network that is for documentation only.
        let message = refusal("203.0.113.7", 30000).await;
        assert!(
            message.contains("--host is no address of this machine") && !message.contains("another"),
            "{message}"
        );
        // Too long for a name, so that nobody is asked for it.
        let message = refusal(&"x".repeat(300), 30000).await;
        assert!(message.contains("cannot be resolved"), "{message}");
        assert!(
            message.contains("--host must be an address of this machine"),
            "{message}"
        );
    }
}
