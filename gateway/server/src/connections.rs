//! Accepts client connections and runs them to their end.

use std::{future::Future, pin::pin, time::Duration};

use axum::{Router, body::Body};
use http::Request;
use hyper::{body::Incoming, rt::Executor};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::conn::auto::Builder,
    service::TowerToHyperService,
};
use metrics::Gauge;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::ServiceExt;

use crate::{
    telemetry::Telemetry,
    transport::{Io, Listener},
};

/// A client that opened a connection has this long to send a request's head.
const HEADER_LIMIT: Duration = Duration::from_secs(30);

/// All client connections of a gateway.
pub struct Connections {
    running: TaskTracker,
    /// No new connections; those that run end after their current answer.
    closing: CancellationToken,
    /// Connections end in mid-answer.
    cut: CancellationToken,
    gauge: Gauge,
}

/// Runs the tasks of HTTP/2 connections where the drain sees them.
#[derive(Clone)]
struct TrackedExecutor(TaskTracker);

// === impl Connections ===

impl Connections {
    pub fn new(telemetry: &Telemetry) -> Self {
        Self {
            running: TaskTracker::new(),
            closing: CancellationToken::new(),
            cut: CancellationToken::new(),
            gauge: telemetry.connections(),
        }
    }

    /// Starts to serve a listener.
    pub fn accept(&self, mut listener: Box<dyn Listener>, app: Router, tasks: &TaskTracker) {
        let (closing, cut) = (self.closing.clone(), self.cut.clone());
        let (running, gauge) = (self.running.clone(), self.gauge.clone());
        let tasks_of_connections = tasks.clone();
        tasks.spawn(async move {
            loop {
                let accepted = tokio::select! {
                    () = closing.cancelled() => return,
                    () = cut.cancelled() => return,
                    accepted = listener.accept() => accepted,
                };
                match accepted {
                    Ok(io) => {
                        let (closing, gauge) = (closing.clone(), gauge.clone());
                        let connection =
                            serve_connection(io, app.clone(), closing, TrackedExecutor(running.clone()));
                        let connection =
                            running.track_future(cut.clone().run_until_cancelled_owned(connection));
                        tasks_of_connections.spawn(async move {
                            gauge.increment(1);
                            // Ended, or cut by `Connections::cut`: both are the wish of somebody.
                            connection.await;
                            gauge.decrement(1);
                        });
                    }
                    Err(error) => {
                        tracing::error!(%error, "the listener is broken; no further connections are taken");
                        return;
                    }
                }
            }
        });
    }

    /// Lets every connection end after its current answer.
    pub fn close(&self) {
        self.closing.cancel();
        self.running.close();
    }

    /// Returns when all connections ended. Only after [`Self::close`].
    pub async fn closed(&self) {
        self.running.wait().await;
    }

    /// Ends every connection now.
    pub fn cut(&self) {
        self.closing.cancel();
        self.cut.cancel();
    }
}

async fn serve_connection(
    io: Box<dyn Io>,
    app: Router,
    closing: CancellationToken,
    executor: TrackedExecutor,
) {
    let service =
        TowerToHyperService::new(app.map_request(|request: Request<Incoming>| request.map(Body::new)));
    let mut builder = Builder::new(executor);
    // NOTE: without `half_close`, with which a client that left is noticed by writing to it only: a request that
    // writes nothing for minutes would run on for nobody.
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_LIMIT);
    builder.http2().timer(TokioTimer::new());
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a client connection ended");
    }
}

// === impl TrackedExecutor ===

impl<F> Executor<F> for TrackedExecutor
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future);
    }
}
