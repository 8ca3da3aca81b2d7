//! `smg simulate`: the simulation with its options, its progress and its report.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use smg_config::{ConfigError, ReportFormat, SimulateOptions};
use smg_simulation::{
    EngineParams, Params, Report, SimulateError, Speed, Trace, TraceParams, possible_hit_rate,
};
use tokio::time::Instant;

/// Simulations that are done sooner show no progress, and this is the time between two looks at it.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(1);

/// Runs it and returns the exit status. A signal ends it at once: nothing here handles one.
pub(crate) fn simulate(options: SimulateOptions) -> i32 {
    let format = options.format;
    match report(options) {
        Ok(report) => {
            let text = match format {
                ReportFormat::Table => report.table(),
                ReportFormat::Json => report.json(),
            };
            // A reader that closed the pipe has read enough.
            match writeln!(std::io::stdout(), "{}", text.trim_end()) {
                Ok(()) | Err(_) => 0,
            }
        }
        Err(error) => {
            eprintln!("smg: {error}");
            ConfigError::EXIT_CODE
        }
    }
}

fn report(options: SimulateOptions) -> Result<Report, SimulateError> {
    let (params, source) = params_of(options);
    params.check()?;
    let trace = Trace::new(&source)?;
    let mut progress = Progress::new();
    let epoch = Instant::now().into_std();
    let outcomes = smg_simulation::simulate(&params, &trace, epoch, &mut |policy, ended, all| {
        progress.show(policy, ended, all);
    });
    progress.clear();
    let outcomes = outcomes?;
    Ok(Report::new(
        &params,
        &trace,
        possible_hit_rate(&params, &trace)?,
        &outcomes,
    ))
}

fn params_of(options: SimulateOptions) -> (Params, TraceParams) {
    let source = TraceParams {
        from: options.from,
        name: options.trace,
        num_requests: options.requests,
        rate: options.rate,
        num_workers: options.workers,
        seed: options.seed,
    };
    let params = Params {
        num_workers: options.workers,
        num_gateways: options.gateways,
        policies: options.policy,
        engine: EngineParams {
            speed: Speed {
                prefill_rate: options.prefill_rate,
                step_ms: options.step_ms,
                request_us: options.request_us,
                kv_token_ns: options.kv_token_ns,
            },
            page_size: options.page_size,
            kv_tokens: options.kv_tokens,
            prefill_budget: options.prefill_budget,
        },
        event_delay_ms: (!options.without_events).then_some(options.event_delay_ms),
        seed: options.seed,
    };
    (params, source)
}

/// One line on a terminal, written over and over.
struct Progress {
    is_terminal: bool,
    is_shown: bool,
    next: Instant,
}

impl Progress {
    fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            is_shown: false,
            next: Instant::now() + PROGRESS_INTERVAL,
        }
    }

    fn show(&mut self, policy: &str, ended: usize, all: usize) {
        let now = Instant::now();
        if self.is_terminal && now >= self.next {
            eprint!("\r\x1b[K{policy}: {ended} of {all} requests");
            self.is_shown = true;
            self.next = now + PROGRESS_INTERVAL;
        }
    }

    fn clear(&self) {
        if self.is_shown {
            eprint!("\r\x1b[K");
        }
    }
}
