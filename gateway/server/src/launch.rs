//! The command line: parse, log, serve, end with a status.

use std::{
    ffi::OsString,
    io::{IsTerminal, Write},
};

use smg_config::{Command, ConfigError, GatewayConfig, LogLevel};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tracing_subscriber::EnvFilter;

use crate::serve::{Environment, Listening, ServeError, Shutdown, serve};

/// The gateway could not start, or was ended before it had finished.
const EXIT_FAILURE: i32 = 1;

/// Runs the program with the arguments after its name and returns its exit status. Handles SIGTERM and SIGINT:
/// the first one drains, the second ends at once.
pub fn main_from_args<A: Into<OsString>>(args: impl IntoIterator<Item = A>) -> i32 {
    let args: Vec<OsString> = args.into_iter().map(Into::into).collect();
    match smg_config::parse(args.clone()) {
        Ok(Command::Print(text)) => {
            // A reader that closed the pipe has read enough.
            match writeln!(std::io::stdout(), "{}", text.trim_end()) {
                Ok(()) | Err(_) => 0,
            }
        }
        Ok(Command::Launch(config)) => launch(*config, args),
        Ok(Command::Simulate(options)) => crate::simulate::simulate(*options),
        Err(error) => {
            eprintln!("smg: {error}");
            ConfigError::EXIT_CODE
        }
    }
}

fn launch(config: GatewayConfig, args: Vec<OsString>) -> i32 {
    start_logging(config.logging.log_level, config.logging.log_json);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("smg: cannot start: {error}");
            return EXIT_FAILURE;
        }
    };
    let status = match runtime.block_on(run(config, args)) {
        Ok(status) => status,
        Err(error) => {
            eprintln!("smg: {error}");
            EXIT_FAILURE
        }
    };
    // After a second signal there may be work left that nobody waits for.
    runtime.shutdown_background();
    status
}

async fn run(config: GatewayConfig, args: Vec<OsString>) -> Result<i32, ServeError> {
    let shutdown = Shutdown::default();
    let signals = TaskTracker::new();
    // Before anybody hears that the gateway listens: a signal must find its handler.
    let watcher = signals.spawn(watch_signals(Signals::new(), shutdown.clone()));
    let (reloads, changed) = mpsc::channel(1);
    let reader = watch_file(args, reloads).map(|reading| signals.spawn(reading));
    let env = Environment {
        reloads: changed,
        ..Environment::system(shutdown.clone(), announce)
    };
    let served = serve(config, env).await;
    watcher.abort();
    if let Some(reader) = reader {
        reader.abort();
    }
    served?;
    Ok(if shutdown.now.is_cancelled() {
        EXIT_FAILURE
    } else {
        0
    })
}

/// The one line on standard output that scripts wait for.
fn announce(listening: Listening) {
    let host = match listening.address.ip() {
        ip if ip.is_unspecified() => "localhost".to_owned(),
        ip if ip.is_ipv6() => format!("[{ip}]"),
        ip => ip.to_string(),
    };
    let line = format!(
        "smg listens on http://{host}:{} with {} worker(s)",
        listening.address.port(),
        listening.num_workers
    );
    let mut out = std::io::stdout();
    if let Err(error) = writeln!(out, "{line}").and_then(|()| out.flush()) {
        tracing::debug!(%error, "standard output is closed");
    }
}

async fn watch_signals(signals: std::io::Result<Signals>, shutdown: Shutdown) {
    match signals {
        Ok(mut signals) => {
            signals.next().await;
            shutdown.drain.cancel();
            signals.next().await;
            shutdown.now.cancel();
        }
        Err(error) => tracing::error!(%error, "signals cannot be handled"),
    }
}

/// Reads the configuration anew at each SIGHUP, where it has a file; without one SIGHUP ends the process as it does any
/// other.
fn watch_file(
    args: Vec<OsString>,
    reloads: mpsc::Sender<Box<GatewayConfig>>,
) -> Option<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    smg_config::config_file(args.clone())?;
    let mut hangup = signal(SignalKind::hangup())
        .inspect_err(|error| tracing::error!(%error, "SIGHUP cannot be handled"))
        .ok()?;
    Some(async move {
        while hangup.recv().await.is_some() {
            match smg_config::parse(args.clone()) {
                Ok(Command::Launch(config)) => drop(reloads.send(config).await),
                Ok(_) => {}
                Err(error) => tracing::error!(%error, "the configuration cannot be used; all stays as it is"),
            }
        }
    })
}

/// SIGTERM and SIGINT.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Logs go to standard error. An embedding program may have set up its own logging, which then stays.
pub(crate) fn start_logging(level: LogLevel, as_json: bool) {
    // Other crates' debug lines are of no use to operators.
    let filter = EnvFilter::new(format!(
        "warn,smg={0},smg_engine_client={0},smg_routing={0}",
        level.as_str()
    ));
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    let started = if as_json {
        builder.json().try_init()
    } else {
        builder.try_init()
    };
    if let Err(error) = started {
        eprintln!("smg: logging is already set up: {error}");
    }
}
