//! Every option of the gateway. The doc comment of a field is its help text, the attribute holds its default and
//! its bounds, and flag, environment variable and key in a file follow from the field's name.

use std::convert::Infallible;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::limits::LimitOptions;
use crate::models::ModelOptions;
use crate::secret::Secret;

/// Everything that can be set, grouped by concern. Checked when it exists: there is no way to build one but
/// through [`crate::parse`] and [`crate::from_map`].
#[derive(Debug, Clone, PartialEq, Args, Serialize)]
pub struct GatewayConfig {
    #[command(flatten)]
    #[serde(flatten)]
    pub server: ServerOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub routing: RoutingOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub models: ModelOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub requests: RequestOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub limits: LimitOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub retry: RetryOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub breaker: BreakerOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub health: HealthOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub startup: StartupOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub tokenizer: TokenizerOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub auth: AuthOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub metrics: MetricsOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub tracing: TraceOptions,
    #[command(flatten)]
    #[serde(flatten)]
    pub logging: LogOptions,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Server")]
pub struct ServerOptions {
    /// Address to listen on
    #[arg(long, default_value = "0.0.0.0", value_parser = bare_host, value_name = "ADDRESS")]
    pub host: String,
    /// Port of the HTTP API
    #[arg(long, default_value_t = 30000, value_parser = port())]
    pub port: u16,
    /// Workers to route to, each as grpc://HOST:PORT or unix:///PATH
    #[arg(long, num_args = 1.., value_delimiter = ',', value_name = "URL")]
    pub worker_urls: Vec<String>,
    /// File that keeps the workers that were added at run time, for the next start
    #[arg(long, value_name = "FILE")]
    pub worker_state_file: Option<PathBuf>,
}

/// Room for the bodies of many requests where each one is bounded to little.
const LEAST_BODY_MEMORY: usize = 256 << 20;

/// How a worker is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum Policy {
    /// Any worker, by chance
    Random,
    /// Each worker in turn
    RoundRobin,
    /// The worker where the prompt is computed first: what it holds of it, what is queued there and how fast it is
    CacheAware,
    /// Of two workers drawn by chance the one with less work, in tokens
    PowerOfTwo,
    /// The worker where a new request waits least
    LeastLoad,
    /// The worker that the hash of the prompt's opening gives, or the next one while that is busy
    PrefixHash,
    /// The worker that the hash of the routing key gives
    ConsistentHashing,
    /// The worker that had the routing key before
    Manual,
    /// The worker for prompts of this length
    Bucket,
}

/// Where the policy `manual` puts a new routing key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize)]
#[value(rename_all = "snake_case")]
#[serde(rename_all = "snake_case")]
pub enum AssignmentMode {
    /// Where its hash says, in every gateway the same
    Random,
    /// To the worker with the least work
    MinLoad,
    /// To the worker with the fewest keys
    MinGroup,
}

impl Policy {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value()
            .map(|value| value.get_name().to_owned())
            .unwrap_or_default()
    }

    /// Every policy, in the order of the help.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Routing")]
pub struct RoutingOptions {
    /// How a worker is chosen for a request
    #[arg(long, value_enum, default_value_t = Policy::CacheAware)]
    pub policy: Policy,
    /// cache_aware: share of the prompt (0 to 1) that a worker must hold for its cache to count
    #[arg(long, alias = "cache-match-threshold", default_value_t = 0.3, value_parser = share, value_name = "SHARE")]
    pub cache_threshold: f64,
    /// cache_aware, bucket (at most 64 there): a worker is passed over while it runs this many requests more than the least loaded one …
    #[arg(
        long,
        alias = "spill-abs-threshold",
        default_value_t = 256,
        value_parser = whole::<usize>(0, 1_000_000),
        value_name = "REQUESTS"
    )]
    pub balance_abs_threshold: usize,
    /// … and also this many times as many (1 or more)
    #[arg(long, alias = "spill-rel-threshold", default_value_t = 1.5, value_parser = factor, value_name = "FACTOR")]
    pub balance_rel_threshold: f64,
    /// Memory of the index of what workers report of their prefix caches, and as much again for what those that report nothing were sent; the least recently used pages go first
    #[arg(long, default_value_t = 268_435_456, value_parser = whole::<usize>(65_536, 1 << 40), value_name = "BYTES")]
    pub prefix_index_max_bytes: usize,
    /// Pages of 16 tokens remembered of a worker that reports neither what it caches nor how much that can be; the least recently used go first
    #[arg(long, default_value_t = 1_048_576, value_parser = whole::<usize>(1, 67_108_864), value_name = "PAGES")]
    pub max_tree_size: usize,
    /// prefix_hash: tokens at the beginning of a prompt that decide
    #[arg(long, default_value_t = 256, value_parser = whole::<usize>(1, 1_000_000), value_name = "TOKENS")]
    pub prefix_token_count: usize,
    /// prefix_hash: a worker is walked past while it runs more than this many times the mean number of requests
    #[arg(long, default_value_t = 1.25, value_parser = factor, value_name = "FACTOR")]
    pub prefix_hash_load_factor: f64,
    /// bucket: time between two looks at the lengths of prompts that came, by which the workers are parted
    #[arg(long, default_value_t = 5, value_parser = seconds(), value_name = "SECONDS")]
    pub bucket_adjust_interval_secs: u64,
    /// manual: where a new routing key goes
    #[arg(long, value_enum, default_value_t = AssignmentMode::Random)]
    pub assignment_mode: AssignmentMode,
    /// manual: a routing key that was not used for this long is new again
    #[arg(long, alias = "sticky-key-idle-secs", default_value_t = 14_400, value_parser = seconds(), value_name = "SECONDS")]
    pub max_idle_secs: u64,
    /// cache_aware, least_load: seconds that a worker counts as slower while half of its KV memory is in use
    #[arg(long, default_value_t = 0.15, value_parser = weight, value_name = "SECONDS")]
    pub least_load_kv_pressure_weight: f64,
    /// cache_aware, least_load: prompt tokens per second of workers while none was measured
    #[arg(long, default_value_t = 2000.0, value_parser = rate, value_name = "TOKENS")]
    pub least_load_default_throughput: f64,
}

impl RoutingOptions {
    pub fn bucket_adjust_interval(&self) -> Duration {
        Duration::from_secs(self.bucket_adjust_interval_secs)
    }

    pub fn max_idle(&self) -> Duration {
        Duration::from_secs(self.max_idle_secs)
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Requests")]
pub struct RequestOptions {
    /// Longest time for a whole request from its arrival on, queue and streamed answers included
    #[arg(long, default_value_t = 1800, value_parser = seconds(), value_name = "SECONDS")]
    pub request_timeout_secs: u64,
    /// Longest time without a token from the worker, or in which a client reads nothing of its stream, before a request is given up
    #[arg(
        long,
        alias = "stream-body-stall-timeout-secs",
        default_value_t = 300,
        value_parser = seconds(),
        value_name = "SECONDS"
    )]
    pub stream_stall_timeout_secs: u64,
    /// Largest request body; all bodies that wait for their turn take together at most this much or 256 MiB, whichever is more
    #[arg(long, default_value_t = 536_870_912, value_parser = whole::<usize>(1024, 1 << 40), value_name = "BYTES")]
    pub max_payload_size: usize,
    /// Time that running requests get to end after SIGTERM
    #[arg(long, default_value_t = 180, value_parser = whole::<u64>(0, MOST_SECONDS), value_name = "SECONDS")]
    pub shutdown_grace_period_secs: u64,
    /// Generations that run at once: -1 = 1024 per core and at least 4096, 0 = no limit
    #[arg(
        long,
        default_value_t = -1,
        value_parser = running,
        value_name = "REQUESTS"
    )]
    pub max_concurrent_requests: i64,
    /// Generations that wait for a place beyond that limit; 0 refuses at once
    #[arg(long, default_value_t = 100, value_parser = whole::<usize>(0, 1_000_000), value_name = "REQUESTS")]
    pub queue_size: usize,
    /// Longest wait for a place
    #[arg(long, default_value_t = 60, value_parser = whole::<u64>(0, MOST_SECONDS), value_name = "SECONDS")]
    pub queue_timeout_secs: u64,
    /// Headers to take the request id from, first match wins
    #[arg(
        long,
        num_args = 1..,
        value_delimiter = ',',
        default_values = ["x-request-id", "x-correlation-id", "x-trace-id", "request-id"],
        value_name = "HEADER"
    )]
    pub request_id_headers: Vec<String>,
}

impl RequestOptions {
    pub fn request_timeout(&self) -> Duration {
        Duration::from_secs(self.request_timeout_secs)
    }

    pub fn stream_stall_timeout(&self) -> Duration {
        Duration::from_secs(self.stream_stall_timeout_secs)
    }

    pub fn shutdown_grace_period(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace_period_secs)
    }

    pub fn queue_timeout(&self) -> Duration {
        Duration::from_secs(self.queue_timeout_secs)
    }

    /// Bytes that request bodies may take together until their prompts are tokenized.
    pub fn body_memory(&self) -> usize {
        self.max_payload_size.max(LEAST_BODY_MEMORY)
    }

    /// Generations that may run at once on a machine with `cores`; `None` is no limit.
    pub fn concurrency_limit(&self, cores: usize) -> Option<usize> {
        match self.max_concurrent_requests {
            0 => None,
            limit => Some(usize::try_from(limit).unwrap_or_else(|_| (1024 * cores).max(4096))),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Retries")]
pub struct RetryOptions {
    /// Attempts in all, the first one included
    #[arg(long, default_value_t = 5, value_parser = whole::<u32>(1, 100), value_name = "ATTEMPTS")]
    pub retry_max_retries: u32,
    /// Wait before the second attempt
    #[arg(long, default_value_t = 50, value_parser = millis(), value_name = "MILLISECONDS")]
    pub retry_initial_backoff_ms: u64,
    /// Longest wait between attempts
    #[arg(long, default_value_t = 30_000, value_parser = millis(), value_name = "MILLISECONDS")]
    pub retry_max_backoff_ms: u64,
    /// Growth of the wait from attempt to attempt (1 or more)
    #[arg(long, default_value_t = 1.5, value_parser = factor, value_name = "FACTOR")]
    pub retry_backoff_multiplier: f64,
    /// Random share (0 to 1) by which a wait is longer or shorter
    #[arg(long, default_value_t = 0.2, value_parser = share, value_name = "SHARE")]
    pub retry_jitter_factor: f64,
    /// Attempts after the first that there may be for each request, counted over ten seconds; beyond them failures are told at once
    #[arg(long, default_value_t = 0.2, value_parser = weight, value_name = "RATIO")]
    pub retry_budget_ratio: f64,
    /// Attempts after the first that there may be per second besides
    #[arg(long, default_value_t = 10, value_parser = whole::<u32>(0, 1_000_000), value_name = "ATTEMPTS")]
    pub retry_budget_min_per_second: u32,
    /// Make one attempt only
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub disable_retries: bool,
}

impl RetryOptions {
    /// Attempts that a request gets.
    pub fn attempts(&self) -> u32 {
        if self.disable_retries {
            1
        } else {
            self.retry_max_retries
        }
    }

    /// The wait after attempt `attempt` (from 0) failed, without jitter.
    pub fn backoff(&self, attempt: u32) -> Duration {
        let grown =
            self.retry_initial_backoff_ms as f64 * self.retry_backoff_multiplier.powf(f64::from(attempt));
        Duration::from_secs_f64(grown.min(self.retry_max_backoff_ms as f64) / 1000.0)
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Circuit breaker")]
pub struct BreakerOptions {
    /// Failures within the window that take a worker out
    #[arg(long, default_value_t = 10, value_parser = count(), value_name = "FAILURES")]
    pub cb_failure_threshold: u32,
    /// Successes in a row that bring it back
    #[arg(long, default_value_t = 3, value_parser = count(), value_name = "SUCCESSES")]
    pub cb_success_threshold: u32,
    /// Time until a worker that was taken out gets a trial request
    #[arg(long, default_value_t = 60, value_parser = seconds(), value_name = "SECONDS")]
    pub cb_timeout_duration_secs: u64,
    /// Window over which failures are counted
    #[arg(long, default_value_t = 120, value_parser = seconds(), value_name = "SECONDS")]
    pub cb_window_duration_secs: u64,
    /// Never take a worker out because of failed requests
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub disable_circuit_breaker: bool,
}

impl BreakerOptions {
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.cb_timeout_duration_secs)
    }

    pub fn window(&self) -> Duration {
        Duration::from_secs(self.cb_window_duration_secs)
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Health checks")]
pub struct HealthOptions {
    /// Failed probes in a row that make a worker unhealthy
    #[arg(long, default_value_t = 3, value_parser = count(), value_name = "PROBES")]
    pub health_failure_threshold: u32,
    /// Good probes in a row that make it healthy again
    #[arg(long, default_value_t = 2, value_parser = count(), value_name = "PROBES")]
    pub health_success_threshold: u32,
    /// Longest wait for the answer to a probe
    #[arg(long, default_value_t = 5, value_parser = seconds(), value_name = "SECONDS")]
    pub health_check_timeout_secs: u64,
    /// Time between two probes of a worker, and from the last answer that it began to the next probe
    #[arg(long, default_value_t = 10, value_parser = seconds(), value_name = "SECONDS")]
    pub health_check_interval_secs: u64,
    /// Random share (0 to 1) by which the time between two probes is shorter, so that workers are not probed all at once
    #[arg(long, default_value_t = 0.2, value_parser = share, value_name = "SHARE")]
    pub health_check_jitter_factor: f64,
    /// Have a worker generate one token, or embed one, before it gets requests
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub health_check_generate: bool,
    /// Do not probe workers once they are ready
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub disable_health_check: bool,
}

impl HealthOptions {
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.health_check_timeout_secs)
    }

    pub fn interval(&self) -> Duration {
        Duration::from_secs(self.health_check_interval_secs)
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Worker start-up")]
pub struct StartupOptions {
    /// Longest time for a worker to load its model and become ready
    #[arg(long, default_value_t = 1800, value_parser = seconds(), value_name = "SECONDS")]
    pub worker_startup_timeout_secs: u64,
    /// Time between two looks at a worker that is not ready yet
    #[arg(
        long,
        alias = "worker-startup-check-interval-secs",
        default_value_t = 1,
        value_parser = seconds(),
        value_name = "SECONDS"
    )]
    pub worker_startup_check_interval: u64,
}

impl StartupOptions {
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.worker_startup_timeout_secs)
    }

    pub fn check_interval(&self) -> Duration {
        Duration::from_secs(self.worker_startup_check_interval)
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Tokenizer")]
pub struct TokenizerOptions {
    /// Folder with tokenizer.json and friends, in place of the files that the worker hands over
    #[arg(long, alias = "model-path", value_name = "FOLDER")]
    pub tokenizer_path: Option<PathBuf>,
    /// File with the chat template (Jinja), in place of the model's own
    #[arg(long, value_name = "FILE")]
    pub chat_template: Option<PathBuf>,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Access")]
pub struct AuthOptions {
    /// Key that clients must send as `Authorization: Bearer KEY`
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub api_key: Option<Secret>,
    /// Key for the administrative routes in place of that one; those of the storage backend need it
    #[arg(long, value_name = "KEY", hide_default_value = true)]
    pub admin_api_key: Option<Secret>,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Metrics")]
pub struct MetricsOptions {
    /// Port of a second listener for /metrics; the main port always serves it
    #[arg(long, value_parser = port())]
    pub prometheus_port: Option<u16>,
    /// Address of that listener
    #[arg(long, default_value = "0.0.0.0", value_parser = bare_host, value_name = "ADDRESS")]
    pub prometheus_host: String,
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Traces")]
pub struct TraceOptions {
    /// Send spans of every request to an OpenTelemetry collector
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub enable_trace: bool,
    /// Collector that takes OTLP over gRPC without TLS, as HOST:PORT
    #[arg(long, default_value = "localhost:4317", value_name = "ADDRESS")]
    pub otlp_traces_endpoint: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    #[value(alias = "warning")]
    Warn,
    Error,
}

impl LogLevel {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Args, Serialize)]
#[command(next_help_heading = "Logs")]
pub struct LogOptions {
    /// Least severe level that is logged
    #[arg(long, value_enum, default_value_t = LogLevel::Info)]
    pub log_level: LogLevel,
    /// Log one JSON object a line
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true")]
    #[arg(action = clap::ArgAction::Set, value_name = "true|false", hide_possible_values = true)]
    pub log_json: bool,
}

// ------------------------------------------------------------------ bounds

/// A hundred years: deadlines can be added without overflow.
const MOST_SECONDS: u64 = 3_155_760_000;

/// An IPv6 address without the brackets that it has in URLs. What is wrong with a host is told by `validate`.
fn bare_host(text: &str) -> Result<String, Infallible> {
    let inner = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = inner.filter(|inner| inner.parse::<Ipv6Addr>().is_ok());
    Ok(address.unwrap_or(text).to_owned())
}

fn port() -> impl Fn(&str) -> Result<u16, String> + Clone + Send + Sync + 'static {
    whole(1, u64::from(u16::MAX))
}

fn seconds() -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    whole(1, MOST_SECONDS)
}

fn millis() -> impl Fn(&str) -> Result<u64, String> + Clone + Send + Sync + 'static {
    whole(1, 86_400_000)
}

fn count() -> impl Fn(&str) -> Result<u32, String> + Clone + Send + Sync + 'static {
    whole(1, u64::from(u32::MAX))
}

/// Every number's error says which ones are allowed.
pub(crate) fn whole<T: TryFrom<u64>>(
    least: u64,
    most: u64,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse().ok().filter(|number| (least..=most).contains(number));
        let number = number.and_then(|number| T::try_from(number).ok());
        number.ok_or_else(|| format!("it must be a whole number from {least} to {most}"))
    }
}

/// -1 stands for a number that follows from the machine.
fn running(text: &str) -> Result<i64, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number| (-1..=1_000_000).contains(number));
    number.ok_or_else(|| "it must be a whole number from -1 to 1000000".to_owned())
}

fn share(text: &str) -> Result<f64, String> {
    number_in(text, |value| (0.0..=1.0).contains(&value), "a number from 0 to 1")
}

fn factor(text: &str) -> Result<f64, String> {
    number_in(
        text,
        |value| (1.0..=1000.0).contains(&value),
        "a number from 1 to 1000",
    )
}

fn weight(text: &str) -> Result<f64, String> {
    number_in(
        text,
        |value| (0.0..=1000.0).contains(&value),
        "a number from 0 to 1000",
    )
}

fn rate(text: &str) -> Result<f64, String> {
    number_in(
        text,
        |value| (1.0..=1e9).contains(&value),
        "a number from 1 to 1000000000",
    )
}

fn number_in(text: &str, holds: fn(f64) -> bool, allowed: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|value| holds(*value))
        .ok_or_else(|| format!("it must be {allowed}"))
}
