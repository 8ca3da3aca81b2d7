//! The gateway's own Prometheus series: names, labels and buckets in one place.

use std::{sync::Arc, time::Duration};

use metrics::{Counter, Gauge, Histogram, Key, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{BuildError, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Upper bounds in seconds. Latencies of models span from a cached token to a long answer.
const BUCKETS: [f64; 21] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 30.0, 45.0, 60.0,
    90.0, 120.0, 180.0, 240.0,
];

/// Histogram samples are folded into buckets this often; between two folds they take memory.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// The error type of a generation whose end nobody took: its client left, or did not read in time.
const CLIENT_CLOSED: &str = "client_closed";

const METADATA: Metadata<'static> = Metadata::new("smg", Level::INFO, None);

/// Hands out counters, gauges and histograms. Clones share one registry; there is no global one.
#[derive(Clone)]
pub struct Telemetry {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
}

/// What one generation is counted under.
#[derive(Clone)]
pub struct GenerationLabels {
    pub model: SharedString,
    pub endpoint: &'static str,
    pub streaming: bool,
}

/// One generation between its start and its end.
pub struct Generation {
    telemetry: Telemetry,
    labels: GenerationLabels,
    ended: bool,
}

/// Token counts of a finished generation.
#[derive(Clone, Copy, Default)]
pub struct TokenCounts {
    pub prompt: u64,
    pub completion: u64,
    pub cached: u64,
}

// === impl Telemetry ===

impl Telemetry {
    pub fn new() -> Result<Self, BuildError> {
        let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS)?.build_recorder();
        let handle = recorder.handle();
        let telemetry = Self {
            recorder: Arc::new(recorder),
            handle,
        };
        telemetry.describe();
        Ok(telemetry)
    }

    /// Folds samples until `stop` fires.
    pub fn keep_up(&self, tasks: &TaskTracker, stop: CancellationToken) {
        let handle = self.handle.clone();
        tasks.spawn(async move {
            let mut ticks = tokio::time::interval(UPKEEP_INTERVAL);
            while stop.run_until_cancelled(ticks.tick()).await.is_some() {
                handle.run_upkeep();
            }
        });
    }

    /// All series in the Prometheus text format.
    pub fn render(&self) -> String {
        self.handle.render()
    }

    pub fn counter(&self, name: &'static str, labels: Vec<Label>) -> Counter {
        self.recorder
            .register_counter(&Key::from_parts(name, labels), &METADATA)
    }

    pub fn gauge(&self, name: &'static str, labels: Vec<Label>) -> Gauge {
        self.recorder
            .register_gauge(&Key::from_parts(name, labels), &METADATA)
    }

    pub fn histogram(&self, name: &'static str, labels: Vec<Label>) -> Histogram {
        self.recorder
            .register_histogram(&Key::from_parts(name, labels), &METADATA)
    }

    fn describe(&self) {
        for (name, text) in COUNTERS {
            self.recorder
                .describe_counter((*name).into(), None, (*text).into());
        }
        for (name, text) in GAUGES {
            self.recorder.describe_gauge((*name).into(), None, (*text).into());
        }
        for (name, text) in HISTOGRAMS {
            self.recorder
                .describe_histogram((*name).into(), None, (*text).into());
        }
    }

    // ---------------------------------------------------------------- HTTP

    pub fn http_request(&self, method: &'static str, path: &SharedString) {
        let labels = vec![
            Label::from_static_parts("method", method),
            Label::new("path", path.clone()),
        ];
        self.counter("smg_http_requests_total", labels).increment(1);
    }

    /// `elapsed` runs until the response head; generation times are series of their own.
    pub fn http_response(&self, method: &'static str, path: &SharedString, outcome: HttpOutcome<'_>) {
        let labels = vec![
            Label::from_static_parts("method", method),
            Label::new("path", path.clone()),
        ];
        self.histogram("smg_http_request_duration_seconds", labels)
            .record(outcome.elapsed);
        let labels = vec![
            Label::new("status_code", outcome.status.to_string()),
            Label::new("error_code", outcome.error_code.to_owned()),
        ];
        self.counter("smg_http_responses_total", labels).increment(1);
    }

    pub fn rate_limit(&self, result: &'static str) {
        let labels = vec![Label::from_static_parts("result", result)];
        self.counter("smg_http_rate_limit_total", labels).increment(1);
    }

    /// A generation that was let in after `waited` in the queue.
    pub fn admitted_late(&self, class: &'static str, waited: Duration) {
        let labels = vec![Label::from_static_parts("class", class)];
        self.histogram("smg_admission_wait_seconds", labels)
            .record(waited);
    }

    pub fn not_admitted(&self, reason: &'static str) {
        let labels = vec![Label::from_static_parts("reason", reason)];
        self.counter("smg_admission_refused_total", labels).increment(1);
    }

    /// What runs and waits when somebody scrapes.
    pub fn admission(&self, state: AdmissionGauges) {
        self.gauge("smg_admission_inflight", Vec::new())
            .set(state.running as f64);
        self.gauge("smg_admission_tenants", Vec::new())
            .set(state.tenants as f64);
        for (class, depth) in state.depths {
            let labels = vec![Label::from_static_parts("class", class)];
            self.gauge("smg_admission_queue_depth", labels).set(depth as f64);
        }
    }

    pub fn connections(&self) -> Gauge {
        self.gauge("smg_http_connections_active", Vec::new())
    }

    // ---------------------------------------------------------------- generation

    /// Counts a generation as started; it is counted again when it ends, whichever way.
    pub fn generation(&self, labels: GenerationLabels) -> Generation {
        let mut all = labels.common();
        all.push(Label::from_static_parts(
            "streaming",
            if labels.streaming { "true" } else { "false" },
        ));
        self.counter("smg_router_requests_total", all).increment(1);
        Generation {
            telemetry: self.clone(),
            labels,
            ended: false,
        }
    }

    /// What the router believed of a worker's cache beside what the worker found there. `is_exact`: the worker had told.
    pub fn cache_prediction(&self, labels: &GenerationLabels, is_exact: bool, predicted: u64, reported: u64) {
        let mut all = labels.common();
        let source = if is_exact { "events" } else { "sent" };
        all.push(Label::from_static_parts("source", source));
        self.counter("smg_cache_predicted_tokens_total", all.clone())
            .increment(predicted);
        self.counter("smg_cache_reported_tokens_total", all.clone())
            .increment(reported);
        self.counter("smg_cache_prediction_error_tokens_total", all)
            .increment(predicted.abs_diff(reported));
    }

    // ---------------------------------------------------------------- workers

    pub fn worker_selected(&self, model: &SharedString, policy: &'static str) {
        let labels = vec![
            Label::from_static_parts("worker_type", "regular"),
            Label::from_static_parts("connection_mode", "grpc"),
            Label::new("model", model.clone()),
            Label::from_static_parts("policy", policy),
        ];
        self.counter("smg_worker_selection_total", labels).increment(1);
    }

    pub fn worker_error(&self, worker: &str, error_type: &'static str) {
        let labels = vec![
            Label::new("worker", worker.to_owned()),
            Label::from_static_parts("error_type", error_type),
        ];
        self.counter("smg_worker_errors_total", labels).increment(1);
    }

    pub fn retry(&self, attempt: u32, backoff: Duration) {
        self.counter("smg_worker_retries_total", Vec::new()).increment(1);
        let labels = vec![Label::new("attempt", attempt.to_string())];
        self.histogram("smg_worker_retry_backoff_seconds", labels)
            .record(backoff);
    }

    pub fn retries_exhausted(&self) {
        self.counter("smg_worker_retries_exhausted_total", Vec::new())
            .increment(1);
    }

    /// A failure that was told because the budget for retries was spent.
    pub fn retry_over_budget(&self) {
        self.counter("smg_worker_retries_over_budget_total", Vec::new())
            .increment(1);
    }

    pub fn health_check(&self, ok: bool) {
        let result = if ok { "success" } else { "failure" };
        let labels = vec![
            Label::from_static_parts("worker_type", "regular"),
            Label::from_static_parts("result", result),
        ];
        self.counter("smg_worker_health_checks_total", labels)
            .increment(1);
    }

    /// Gauges that are read from the worker table when somebody scrapes.
    pub fn worker_state(&self, worker: &SharedString, state: WorkerGauges) {
        let label = || vec![Label::new("worker", worker.clone())];
        self.gauge("smg_worker_health", label())
            .set(if state.ready { 1.0 } else { 0.0 });
        self.gauge("smg_worker_requests_active", label())
            .set(state.running_requests as f64);
        self.gauge("smg_worker_pending_tokens", label())
            .set(state.pending_tokens as f64);
        self.gauge("smg_worker_cb_state", label())
            .set(f64::from(state.breaker));
    }

    /// One of the two indexes of cached prefixes at scrape time.
    pub fn prefix_index(&self, source: &'static str, bytes: usize, pages: usize, evicted: u64) {
        let label = || vec![Label::from_static_parts("source", source)];
        self.gauge("smg_prefix_index_bytes", label()).set(bytes as f64);
        self.gauge("smg_prefix_index_pages", label()).set(pages as f64);
        self.gauge("smg_prefix_index_evicted_pages", label())
            .set(evicted as f64);
    }

    /// How far what a worker reports of its cache is followed.
    pub fn kv_feed(&self, worker: &SharedString, is_exact: bool, gaps: u64) {
        let label = || vec![Label::new("worker", worker.clone())];
        self.gauge("smg_kv_feed_exact", label())
            .set(if is_exact { 1.0 } else { 0.0 });
        self.gauge("smg_kv_feed_gaps", label()).set(gaps as f64);
    }

    pub fn pool_size(&self, model: &SharedString, workers: usize) {
        let labels = vec![
            Label::from_static_parts("worker_type", "regular"),
            Label::from_static_parts("connection_mode", "grpc"),
            Label::new("model", model.clone()),
        ];
        self.gauge("smg_worker_pool_size", labels).set(workers as f64);
    }
}

/// How an HTTP exchange ended.
pub struct HttpOutcome<'a> {
    pub status: u16,
    pub error_code: &'a str,
    pub elapsed: Duration,
}

/// Admission at scrape time.
pub struct AdmissionGauges {
    pub running: usize,
    pub tenants: usize,
    /// What waits, by class.
    pub depths: [(&'static str, usize); 4],
}

/// One worker at scrape time. `breaker`: 0 closed, 1 open, 2 half-open.
pub struct WorkerGauges {
    pub ready: bool,
    pub running_requests: usize,
    pub pending_tokens: usize,
    pub breaker: u8,
}

// === impl Generation ===

impl Generation {
    pub fn first_token(&self, elapsed: Duration) {
        self.histogram("smg_router_ttft_seconds").record(elapsed);
    }

    /// Only the first end counts.
    pub fn failed(&mut self, error_type: &str) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        let mut all = self.labels.common();
        all.push(Label::new("error_type", error_type.to_owned()));
        self.telemetry
            .counter("smg_router_request_errors_total", all)
            .increment(1);
    }

    /// `decoding` is the time from the first token to the end.
    pub fn finished(&mut self, whole: Duration, decoding: Duration, tokens: TokenCounts) {
        self.ended = true;
        self.histogram("smg_router_generation_duration_seconds")
            .record(whole);
        if tokens.completion > 1 {
            let per_token = decoding.as_secs_f64() / (tokens.completion - 1) as f64;
            self.histogram("smg_router_tpot_seconds").record(per_token);
        }
        self.tokens("input", tokens.prompt);
        self.tokens("output", tokens.completion);
        self.tokens("cached", tokens.cached);
    }

    fn histogram(&self, name: &'static str) -> Histogram {
        self.telemetry.histogram(name, self.labels.common())
    }

    fn tokens(&self, token_type: &'static str, count: u64) {
        let mut all = self.labels.common();
        all.push(Label::from_static_parts("token_type", token_type));
        self.telemetry
            .counter("smg_router_tokens_total", all)
            .increment(count);
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        self.failed(CLIENT_CLOSED);
    }
}

// === impl GenerationLabels ===

impl GenerationLabels {
    fn common(&self) -> Vec<Label> {
        vec![
            Label::from_static_parts("router_type", "grpc"),
            Label::from_static_parts("backend_type", "regular"),
            Label::from_static_parts("connection_mode", "grpc"),
            Label::new("model", self.model.clone()),
            Label::from_static_parts("endpoint", self.endpoint),
        ]
    }
}

const COUNTERS: &[(&str, &str)] = &[
    ("smg_http_requests_total", "HTTP requests received."),
    (
        "smg_http_responses_total",
        "HTTP responses sent, by status and error code.",
    ),
    ("smg_http_rate_limit_total", "Decisions of the admission queue."),
    (
        "smg_admission_refused_total",
        "Generations that were not let in, by reason.",
    ),
    ("smg_router_requests_total", "Generations started."),
    (
        "smg_router_request_errors_total",
        "Generations that ended in an error; client_closed: the client left or did not read.",
    ),
    ("smg_router_tokens_total", "Tokens of finished generations."),
    (
        "smg_cache_predicted_tokens_total",
        "Prompt tokens that the chosen workers were believed to hold; source: events of the worker, or what it was sent.",
    ),
    (
        "smg_cache_reported_tokens_total",
        "Prompt tokens that the workers found in their caches.",
    ),
    (
        "smg_cache_prediction_error_tokens_total",
        "Difference of predicted and reported cached tokens.",
    ),
    ("smg_worker_selection_total", "Workers chosen, by policy."),
    ("smg_worker_errors_total", "Failures that count against a worker."),
    ("smg_worker_retries_total", "Attempts after the first."),
    (
        "smg_worker_retries_exhausted_total",
        "Requests that failed after their last attempt.",
    ),
    (
        "smg_worker_retries_over_budget_total",
        "Failures told at once because the budget for retries was spent.",
    ),
    ("smg_worker_health_checks_total", "Health probes, by result."),
];

const GAUGES: &[(&str, &str)] = &[
    ("smg_http_connections_active", "Open client connections."),
    ("smg_admission_tenants", "Tenants that are remembered."),
    ("smg_admission_inflight", "Generations that hold a permit."),
    ("smg_admission_queue_depth", "Generations that wait for a permit."),
    (
        "smg_prefix_index_bytes",
        "Memory of the index of cached prefixes; source: events of workers, or what they were sent.",
    ),
    (
        "smg_prefix_index_pages",
        "Pages in it, each counted once for each worker that holds it.",
    ),
    (
        "smg_prefix_index_evicted_pages",
        "Pages that went from it for want of memory.",
    ),
    (
        "smg_kv_feed_exact",
        "1 while what the worker caches is followed without a hole.",
    ),
    (
        "smg_kv_feed_gaps",
        "Holes in the worker's events since its present process was first seen.",
    ),
    ("smg_worker_pool_size", "Workers that are ready, by model."),
    ("smg_worker_health", "1 when the worker takes traffic."),
    ("smg_worker_requests_active", "Requests running on the worker."),
    (
        "smg_worker_pending_tokens",
        "Prompt tokens of the requests running on the worker.",
    ),
    (
        "smg_worker_cb_state",
        "Circuit breaker: 0 closed, 1 open, 2 half-open.",
    ),
];

const HISTOGRAMS: &[(&str, &str)] = &[
    (
        "smg_admission_wait_seconds",
        "Time in the queue of generations that were let in after it, by class.",
    ),
    (
        "smg_http_request_duration_seconds",
        "Time from the request to the head of the response.",
    ),
    (
        "smg_router_ttft_seconds",
        "Time from the request to the first token.",
    ),
    ("smg_router_tpot_seconds", "Time per token after the first."),
    (
        "smg_router_generation_duration_seconds",
        "Time of whole generations.",
    ),
    (
        "smg_worker_retry_backoff_seconds",
        "Waits before another attempt.",
    ),
];
