//! The gateway inside a program that owns the process: on threads of its own, without a signal handler.

use std::{
    io,
    sync::{
        Once,
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use smg_config::GatewayConfig;

use crate::{
    launch,
    serve::{Environment, Listening, ServeError, Shutdown, serve},
};

/// A gateway that listens. Dropped while it runs, it ends at once.
pub struct Embedded {
    shutdown: Shutdown,
    listening: Listening,
    news: Mutex<Receiver<News>>,
}

#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error("cannot start the gateway's threads: {0}")]
    Threads(#[from] io::Error),
    #[error("the gateway panicked; its last log lines say where")]
    Panicked,
}

enum News {
    Listening(Listening),
    Ended(Result<(), EmbeddedError>),
}

// === impl Embedded ===

impl Embedded {
    /// Starts to serve; returns when the port is open. `shutdown` may be used already.
    pub fn start(config: GatewayConfig, shutdown: Shutdown) -> Result<Self, EmbeddedError> {
        // Two messages at most: listening and ended.
        let (tell, news) = sync_channel(2);
        let inside = shutdown.clone();
        thread::Builder::new().name("smg".to_owned()).spawn(move || {
            let outcome = run(config, inside, tell.clone());
            // Nobody may be left to hear it.
            drop(tell.send(News::Ended(outcome)));
        })?;
        match news.recv() {
            Ok(News::Listening(listening)) => Ok(Self {
                shutdown,
                listening,
                news: Mutex::new(news),
            }),
            Ok(News::Ended(Err(error))) => Err(error),
            // It always listens before it ends well; anything else is a panic on the way.
            Ok(News::Ended(Ok(()))) | Err(_) => Err(EmbeddedError::Panicked),
        }
    }

    pub fn listening(&self) -> Listening {
        self.listening
    }

    /// Asks it to finish what runs and end.
    pub fn stop(&self) {
        self.shutdown.drain.cancel();
    }

    /// Waits for the end, at most for `limit`. `None`: it still runs. The outcome goes to the first who sees it; later
    /// calls get `Panicked`.
    pub fn wait(&self, limit: Duration) -> Option<Result<(), EmbeddedError>> {
        let news = self.news.try_lock_for(limit)?;
        match news.recv_timeout(limit) {
            Ok(News::Ended(outcome)) => Some(outcome),
            Ok(News::Listening(_)) | Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Err(EmbeddedError::Panicked)),
        }
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.shutdown.now.cancel();
    }
}

fn run(config: GatewayConfig, shutdown: Shutdown, tell: SyncSender<News>) -> Result<(), EmbeddedError> {
    static LOGGING: Once = Once::new();
    LOGGING.call_once(|| launch::start_logging(config.logging.log_level, config.logging.log_json));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .thread_name("smg")
        .enable_all()
        .build()?;
    let env = Environment::system(shutdown, move |listening| {
        drop(tell.send(News::Listening(listening)))
    });
    let served = runtime.block_on(serve(config, env));
    runtime.shutdown_background();
    Ok(served?)
}
