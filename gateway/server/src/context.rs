//! What every request shares, built once from the configuration.

use std::{sync::Arc, time::Duration};

use smg_config::GatewayConfig;
use smg_routing::{BreakerParams, HealthParams, WorkerParams, WorkerSet};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    admin::health::ProbeFlight,
    layers::{admission::Admission, body::BodyMemory},
    live::LiveRequests,
    reload,
    retry::Retry,
    serve::{Environment, ServeError},
    spans::Spans,
    telemetry::Telemetry,
    workers::{
        Fleet, Policies, PolicyRules, Prefixes, ProbeTimes, Roster, StateFile, TokenizerSource, Tools,
    },
};

pub struct Context {
    pub fleet: Arc<Fleet>,
    pub roster: Roster,
    pub telemetry: Telemetry,
    pub spans: Spans,
    pub admission: Admission,
    pub lifecycle: Lifecycle,
    pub live: LiveRequests,
    /// Work on behalf of requests that must end before the process does.
    pub tasks: TaskTracker,
    pub times: RequestTimes,
    pub retry: Retry,
    pub api_key: Option<String>,
    pub admin_api_key: Option<String>,
    pub request_id_headers: Vec<String>,
    pub max_body_bytes: usize,
    pub bodies: BodyMemory,
    pub health_generate: ProbeFlight,
    /// Workers are not probed once they are ready.
    pub disable_health_check: bool,
    /// The gateway is the front door of one worker on this machine and answers as that worker's server.
    pub is_front_door: bool,
}

/// Limits on the time of one generation.
#[derive(Clone, Copy)]
pub struct RequestTimes {
    /// From the request's arrival to its last token.
    pub request: Option<Duration>,
    /// Of silence from the worker, or of a client that does not read.
    pub stall: Option<Duration>,
    /// That requests get to end when the gateway, or their worker, is to go.
    pub drain: Duration,
}

/// Whether new generations are taken, and which ones run.
pub struct Lifecycle {
    draining: CancellationToken,
    /// The grace period has passed: what runs ends with an error that its client sees.
    over: CancellationToken,
    requests: TaskTracker,
}

// === impl Context ===

impl Context {
    pub(crate) fn new(
        config: &GatewayConfig,
        env: &Environment,
        stop: &CancellationToken,
    ) -> Result<Self, ServeError> {
        let telemetry = Telemetry::new()?;
        let fleet = Arc::new(fleet(config)?);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let requests = &config.requests;
        Ok(Self {
            roster: roster(config, env, (&fleet, &telemetry, stop))?,
            fleet,
            admission: Admission::new(config, cores, telemetry.clone()),
            lifecycle: Lifecycle {
                draining: CancellationToken::new(),
                over: CancellationToken::new(),
                requests: TaskTracker::new(),
            },
            live: LiveRequests::default(),
            tasks: env.tasks.clone(),
            times: RequestTimes {
                request: Some(requests.request_timeout()),
                stall: Some(requests.stream_stall_timeout()),
                drain: requests.shutdown_grace_period(),
            },
            retry: Retry::new(&config.retry),
            api_key: config.auth.api_key.as_ref().map(|key| key.expose().to_owned()),
            admin_api_key: config
                .auth
                .admin_api_key
                .as_ref()
                .map(|key| key.expose().to_owned()),
            request_id_headers: requests.request_id_headers.clone(),
            max_body_bytes: requests.max_payload_size,
            bodies: BodyMemory::new(requests.body_memory()),
            health_generate: ProbeFlight::default(),
            disable_health_check: config.health.disable_health_check,
            is_front_door: is_front_door(config),
            telemetry,
            spans: Spans::new(&config.tracing)?,
        })
    }
}

/// Nobody is watched yet.
fn roster(
    config: &GatewayConfig,
    env: &Environment,
    (fleet, telemetry, stop): (&Arc<Fleet>, &Telemetry, &CancellationToken),
) -> Result<Roster, ServeError> {
    let interval = (!config.health.disable_health_check).then(|| config.health.interval());
    Ok(Roster::new(Tools {
        fleet: fleet.clone(),
        connector: env.connector.clone(),
        tasks: env.tasks.clone(),
        telemetry: telemetry.clone(),
        times: ProbeTimes {
            interval,
            timeout: config.health.timeout(),
            jitter: config.health.health_check_jitter_factor,
            generates: config.health.health_check_generate,
            startup_interval: config.startup.check_interval(),
            startup_limit: config.startup.timeout(),
        },
        source: tokenizer_source(config)?,
        follows: !is_front_door(config),
        stop: stop.clone(),
        file: config.server.worker_state_file.as_deref().map(StateFile::new),
    }))
}

fn is_front_door(config: &GatewayConfig) -> bool {
    matches!(config.server.worker_urls.as_slice(), [url] if url.starts_with("unix:"))
}

fn fleet(config: &GatewayConfig) -> Result<Fleet, ServeError> {
    let (health, breaker, routing) = (&config.health, &config.breaker, &config.routing);
    let params = WorkerParams {
        health: HealthParams {
            failure_threshold: health.health_failure_threshold,
            success_threshold: health.health_success_threshold,
        },
        breaker: BreakerParams {
            enabled: !breaker.disable_circuit_breaker,
            failure_threshold: breaker.cb_failure_threshold,
            success_threshold: breaker.cb_success_threshold,
            timeout: breaker.timeout(),
            window: breaker.window(),
        },
    };
    let policies =
        Policies::new(PolicyRules::of(config)).map_err(|error| ServeError::Policy(error.to_string()))?;
    let fleet = Fleet::new(
        WorkerSet::new(params),
        policies,
        Prefixes::new(routing.prefix_index_max_bytes, routing.max_tree_size),
    );
    fleet.set_aliases(reload::aliases(config));
    Ok(fleet)
}

fn tokenizer_source(config: &GatewayConfig) -> Result<TokenizerSource, ServeError> {
    let read = |path: &std::path::PathBuf| {
        std::fs::read_to_string(path).map_err(|source| ServeError::ChatTemplate {
            path: path.display().to_string(),
            source,
        })
    };
    Ok(TokenizerSource {
        folder: config.tokenizer.tokenizer_path.clone(),
        chat_template: config.tokenizer.chat_template.as_ref().map(read).transpose()?,
    })
}

// === impl Lifecycle ===

impl Lifecycle {
    /// Counts a generation until the token is dropped.
    pub fn request(&self) -> TaskTrackerToken {
        self.requests.token()
    }

    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Takes no new generation from here on.
    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Ends what still runs.
    pub fn end(&self) {
        self.over.cancel();
    }

    /// Returns after [`Self::end`].
    pub async fn ended(&self) {
        self.over.cancelled().await;
    }

    /// Returns when no generation runs. Only after [`Self::drain`].
    pub async fn finished(&self) {
        self.requests.close();
        self.requests.wait().await;
    }

    pub fn num_running(&self) -> usize {
        self.requests.len()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn the_policies_of_the_flag_are_those_of_the_router() {
        let flag: BTreeSet<String> = smg_config::Policy::all()
            .iter()
            .map(|policy| policy.name())
            .collect();
        let router: BTreeSet<String> = smg_routing::policy_names().map(str::to_owned).collect();
        assert_eq!(flag, router);
    }
}
