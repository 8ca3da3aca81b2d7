//! What every request shares, built once from the configuration.

use std::{sync::Arc, time::Duration};

use rand::RngExt;
use smg_config::{GatewayConfig, RetryOptions};
use smg_engine_client::{Address, EngineClient, EngineError};
use smg_routing::{
    AssignmentMode, BreakerParams, HealthParams, PolicyParams, WorkerParams, WorkerSet, build_policy,
};
use tokio_util::{
    sync::CancellationToken,
    task::{TaskTracker, task_tracker::TaskTrackerToken},
};

use crate::{
    admin::health::ProbeFlight,
    layers::{admission::Admission, body::BodyMemory},
    live::LiveRequests,
    serve::{Environment, ServeError},
    spans::Spans,
    telemetry::Telemetry,
    workers::{Alarm, AlarmedConnector, Fleet, Knowledge, Prefixes, ProbeTimes, TokenizerSource, Watch},
};

pub struct Context {
    pub fleet: Arc<Fleet>,
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
}

/// How often and when a failed attempt is repeated.
pub struct Retry {
    pub max_attempts: u32,
    options: RetryOptions,
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
    pub(crate) fn new(config: &GatewayConfig, env: &Environment) -> Result<Self, ServeError> {
        let telemetry = Telemetry::new()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let requests = &config.requests;
        Ok(Self {
            fleet: Arc::new(fleet(config)?),
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
            },
            retry: Retry {
                max_attempts: config.retry.attempts(),
                options: config.retry.clone(),
            },
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
            is_front_door: matches!(config.server.worker_urls.as_slice(), [url] if url.starts_with("unix:")),
            telemetry,
            spans: Spans::new(&config.tracing)?,
        })
    }

    /// Adds the configured workers and starts to watch each of them.
    pub(crate) fn start_workers(
        &self,
        config: &GatewayConfig,
        env: &Environment,
        stop: &CancellationToken,
    ) -> Result<(), ServeError> {
        let source = tokenizer_source(config)?;
        let interval = (!config.health.disable_health_check).then(|| config.health.interval());
        let times = ProbeTimes {
            interval,
            timeout: config.health.timeout(),
            startup_interval: config.startup.check_interval(),
            startup_limit: config.startup.timeout(),
        };
        for url in &config.server.worker_urls {
            let address: Address = url
                .parse()
                .map_err(|source: EngineError| ServeError::Worker(source.to_string()))?;
            let alarm = Arc::<Alarm>::default();
            let connector = AlarmedConnector {
                inner: env.connector.clone(),
                alarm: alarm.clone(),
            };
            let client = EngineClient::new(address, Arc::new(connector), env.tasks.clone());
            let member = self
                .fleet
                .add(url, client, alarm)
                .map_err(|source| ServeError::Worker(source.to_string()))?;
            let watch = Watch {
                fleet: self.fleet.clone(),
                member,
                times,
                source: source.clone(),
                telemetry: self.telemetry.clone(),
                tasks: env.tasks.clone(),
                knowledge: Knowledge::default(),
                follows: !self.is_front_door,
                following: None,
            };
            env.tasks.spawn(watch.run(stop.clone()));
        }
        Ok(())
    }
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
    let params_of_policy = PolicyParams {
        cache_threshold: routing.cache_threshold,
        balance_abs_threshold: routing.balance_abs_threshold,
        balance_rel_threshold: routing.balance_rel_threshold,
        prefix_hash_load_factor: routing.prefix_hash_load_factor,
        bucket_adjust_interval: routing.bucket_adjust_interval(),
        max_idle: routing.max_idle(),
        assignment_mode: match routing.assignment_mode {
            smg_config::AssignmentMode::Random => AssignmentMode::Random,
            smg_config::AssignmentMode::MinLoad => AssignmentMode::MinLoad,
            smg_config::AssignmentMode::MinGroup => AssignmentMode::MinGroup,
        },
        kv_pressure_weight: routing.least_load_kv_pressure_weight,
        default_prefill_rate: routing.least_load_default_throughput,
    };
    let policy = build_policy(&routing.policy.name(), params_of_policy)
        .map_err(|error| ServeError::Policy(error.to_string()))?;
    let fleet = Fleet::new(
        WorkerSet::new(params),
        policy,
        Prefixes::new(routing.prefix_index_max_bytes, routing.max_tree_size),
    );
    Ok(fleet.with_prefix_token_count(routing.prefix_token_count))
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

// === impl Retry ===

impl Retry {
    /// The wait after `failed` attempts (at least 1).
    pub fn backoff(&self, failed: u32) -> Duration {
        let jitter = self.options.retry_jitter_factor;
        let factor = rand::rng().random_range(1.0 - jitter..=1.0 + jitter);
        self.options.backoff(failed.saturating_sub(1)).mul_f64(factor)
    }
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
