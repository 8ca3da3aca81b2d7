//! The options as a user meets them: a line of arguments, an environment, a file.

mod limits;
mod simulate;
mod wrong_values;

use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::command::from_map_with;
use crate::{Command, GatewayConfig, LogLevel, Policy, option_schema, parse_with};

const WORKERS: &str = "--worker-urls grpc://a:1 unix:///run/b.sock";

fn nothing(_: &str) -> Option<OsString> {
    None
}

fn parse(line: &str) -> Result<Command, crate::ConfigError> {
    parse_with(line.split_whitespace().map(str::to_owned), &nothing)
}

fn launch(line: &str) -> GatewayConfig {
    launch_in(line, &nothing)
}

fn launch_in(line: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> GatewayConfig {
    match parse_with(line.split_whitespace().map(str::to_owned), environment).unwrap() {
        Command::Launch(config) => *config,
        other => panic!("expected a config, got: {other:?}"),
    }
}

fn printed(line: &str, environment: &dyn Fn(&str) -> Option<OsString>) -> String {
    match parse_with(line.split_whitespace().map(str::to_owned), environment).unwrap() {
        Command::Print(text) => text,
        other => panic!("expected text, got: {other:?}"),
    }
}

fn error(line: &str) -> String {
    parse(line).unwrap_err().to_string()
}

/// A file that is gone when the test ends.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("smg-config-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).unwrap();
    }
}

#[test]
fn defaults_are_the_documented_ones() {
    let config = launch("");
    assert_eq!(
        (config.server.host.as_str(), config.server.port),
        ("0.0.0.0", 30000)
    );
    assert_eq!(config.server.worker_urls, Vec::<String>::new());
    assert_eq!(config.routing.policy, Policy::CacheAware);
    assert_eq!(config.requests.request_timeout_secs, 1800);
    assert_eq!(config.requests.max_payload_size, 512 << 20);
    assert_eq!(config.retry.attempts(), 5);
    assert_eq!(config.breaker.cb_failure_threshold, 10);
    assert_eq!(config.health.health_check_interval_secs, 10);
    assert_eq!(config.metrics.prometheus_port, None);
    assert_eq!(config.logging.log_level, LogLevel::Info);
    assert_eq!(config.auth.api_key, None);
}

#[test]
fn bare_flags_and_both_subcommands_mean_the_same() {
    let flags = format!("{WORKERS} --policy round_robin --port 8080 --disable-retries");
    let bare = launch(&flags);
    assert_eq!(bare, launch(&format!("launch {flags}")));
    assert_eq!(bare, launch(&format!("start {flags}")));
    assert_eq!(bare.server.worker_urls, ["grpc://a:1", "unix:///run/b.sock"]);
    assert_eq!(bare.retry.attempts(), 1);
}

#[test]
fn worker_urls_may_be_repeated_and_separated_by_commas() {
    let config = launch("--worker-urls grpc://a:1,grpc://b:2 --worker-urls grpc://c:3 --port 1234");
    assert_eq!(
        config.server.worker_urls,
        ["grpc://a:1", "grpc://b:2", "grpc://c:3"]
    );
}

#[test]
fn a_flag_wins_over_the_environment_and_the_environment_over_the_file() {
    let file = TempFile::new(
        "order.yaml",
        "port: 1001\nhost: file\npolicy: random\nlog-json: true\n",
    );
    let environment = |name: &str| match name {
        "SMG_PORT" => Some("1002".into()),
        "SMG_HOST" => Some("environment".into()),
        "SMG_WORKER_URLS" => Some("grpc://a:1 grpc://b:2".into()),
        "SMG_DISABLE_RETRIES" => Some("true".into()),
        _ => None,
    };
    let config = launch_in(
        &format!("launch --config {} --port 1003 --log-json=false", file.path()),
        &environment,
    );
    assert_eq!(config.server.port, 1003);
    assert_eq!(config.server.host, "environment");
    assert_eq!(config.routing.policy, Policy::Random);
    assert_eq!(config.server.worker_urls, ["grpc://a:1", "grpc://b:2"]);
    assert!(config.retry.disable_retries);
    assert!(!config.logging.log_json);
}

#[test]
fn the_three_kinds_of_file_say_the_same() {
    let files = [
        TempFile::new(
            "a.yaml",
            "worker_urls: [\"grpc://a:1\"]\ncache_threshold: 0.5\ndisable_retries: true\n",
        ),
        TempFile::new(
            "a.toml",
            "worker_urls = [\"grpc://a:1\"]\ncache_threshold = 0.5\ndisable_retries = true\n",
        ),
        TempFile::new(
            "a.json",
            r#"{"worker-urls":["grpc://a:1"],"cache-threshold":0.5,"disable-retries":true}"#,
        ),
    ];
    let expected = launch("--worker-urls grpc://a:1 --cache-threshold 0.5 --disable-retries");
    for file in &files {
        assert_eq!(
            launch(&format!("--config={}", file.path())),
            expected,
            "{}",
            file.path()
        );
        let environment = |name: &str| (name == "SMG_CONFIG").then(|| file.path().into());
        assert_eq!(launch_in("", &environment), expected);
    }
}

#[test]
fn a_kubernetes_service_link_is_no_port() {
    let environment = |name: &str| (name == "SMG_PORT").then(|| "tcp://10.0.0.1:30000".into());
    assert_eq!(launch_in("", &environment).server.port, 30000);
}

#[test]
fn config_show_names_the_origin_and_masks_secrets() {
    let file = TempFile::new("show.toml", "max_payload_size = 4096\n");
    let environment = |name: &str| (name == "SMG_API_KEY").then(|| "hunter2".into());
    let shown = printed(
        &format!("config show --config {} --port 1", file.path()),
        &environment,
    );
    let line = |name: &str| {
        let words = |line: &str| {
            line.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
                .join(" ")
        };
        shown
            .lines()
            .find(|line| line.starts_with(name))
            .map(words)
            .unwrap()
    };
    assert_eq!(line("port "), "port 1 flag");
    assert_eq!(line("host "), "host \"0.0.0.0\" default");
    assert_eq!(
        line("max_payload_size "),
        format!("max_payload_size 4096 file {}", file.path())
    );
    assert_eq!(line("api_key "), "api_key \"********\" environment SMG_API_KEY");
    assert!(!shown.contains("hunter2"));
    let schema = option_schema();
    assert_eq!(shown.lines().count(), schema.as_array().unwrap().len());
}

#[test]
fn help_does_not_show_a_key_from_the_environment() {
    let environment = |name: &str| (name == "SMG_API_KEY").then(|| "hunter2".into());
    for line in ["--help", "-h", "launch --help", "config show --help"] {
        let help = printed(line, &environment);
        assert!(help.contains("--api-key") && !help.contains("hunter2"), "{help}");
    }
}

#[test]
fn version_and_completions_are_text() {
    assert_eq!(
        printed("--version", &nothing).trim(),
        concat!("smg ", env!("CARGO_PKG_VERSION"))
    );
    assert!(printed("completions bash", &nothing).contains("--worker-urls"));
}

#[test]
fn the_words_of_the_wheel_are_answered_with_where_they_are() {
    for word in ["server", "serve"] {
        let sentence = error(&format!("{word} --model-path m"));
        assert!(
            sentence.starts_with(&format!("`smg {word}`")) && sentence.contains("pip install sglang-router"),
            "{sentence}"
        );
    }
}

#[test]
fn bodies_together_may_take_as_much_as_the_largest_one() {
    let memory = |line: &str| launch(line).requests.body_memory();
    assert_eq!(memory("--max-payload-size 536870913"), 536_870_913);
    assert_eq!(memory("--max-payload-size 2048"), 256 << 20);
}

#[test]
fn good_worker_urls_pass() {
    for url in [
        "grpc://10.0.0.1:30001",
        "grpc://[::1]:30001",
        "grpc://worker-0.svc:1/",
        "unix:///tmp/a b.sock",
    ] {
        let map = json!({ "worker_urls": [url] });
        assert_eq!(
            from_map_with(map.as_object().unwrap(), &nothing)
                .unwrap()
                .server
                .worker_urls,
            [url]
        );
    }
}

#[test]
fn a_map_of_options_builds_the_same_config() {
    let map = json!({
        "worker_urls": ["grpc://a:1", "unix:///run/b.sock"],
        "policy": "round_robin",
        "port": 8080,
        "max_concurrent_requests": -1,
        "balance_rel_threshold": 2.0,
        "disable_retries": true,
        "api_key": null,
        "request_id_headers": [],
        "pd_disaggregation": false,
        "selector": {},
    });
    let built = from_map_with(map.as_object().unwrap(), &nothing).unwrap();
    let flags = "--policy round_robin --port 8080 --balance-rel-threshold 2 --disable-retries";
    assert_eq!(built, launch(&format!("{WORKERS} {flags}")));
}

#[test]
fn the_schema_lists_every_option_with_a_default_that_parses() {
    let schema = option_schema();
    let find = |name: &str| {
        schema
            .as_array()
            .unwrap()
            .iter()
            .find(|o| o["name"] == name)
            .unwrap()
            .clone()
    };
    let port = find("port");
    assert_eq!(port["flag"], "--port");
    assert_eq!(port["env"], "SMG_PORT");
    assert_eq!(
        (&port["type"], &port["default"], &port["group"]),
        (&json!("int"), &json!(30000), &json!("Server"))
    );
    assert_eq!(
        find("policy")["choices"],
        json!([
            "random",
            "round_robin",
            "cache_aware",
            "power_of_two",
            "least_load",
            "prefix_hash",
            "consistent_hashing",
            "manual",
            "bucket"
        ])
    );
    assert_eq!(find("disable_retries")["default"], json!(false));
    assert_eq!(find("max_concurrent_requests")["default"], json!(-1));
    assert_eq!(find("worker_urls")["type"], "list");
    assert_eq!(find("api_key")["default"], Value::Null);
    let defaults: serde_json::Map<String, Value> = schema
        .as_array()
        .unwrap()
        .iter()
        .map(|o| (o["name"].as_str().unwrap().to_owned(), o["default"].clone()))
        .collect();
    assert_eq!(from_map_with(&defaults, &nothing).unwrap(), launch(""));
    for option in schema.as_array().unwrap() {
        assert!(
            option["help"].as_str().is_some_and(|help| !help.is_empty()),
            "{option}"
        );
    }
}

#[test]
fn the_limit_of_running_requests_follows_the_cores() {
    let limit = |line: &str, cores| launch(line).requests.concurrency_limit(cores);
    assert_eq!(limit("", 2), Some(4096));
    assert_eq!(limit("", 64), Some(65536));
    assert_eq!(limit("--max-concurrent-requests 7", 64), Some(7));
    assert_eq!(limit("--max-concurrent-requests=0", 64), None);
}

#[test]
fn the_wait_between_attempts_grows_to_its_bound() {
    let retry =
        launch("--retry-initial-backoff-ms 100 --retry-max-backoff-ms 300 --retry-backoff-multiplier 2")
            .retry;
    let waits: Vec<u128> = (0..4).map(|attempt| retry.backoff(attempt).as_millis()).collect();
    assert_eq!(waits, [100, 200, 300, 300]);
    assert_eq!(retry.backoff(u32::MAX).as_millis(), 300);
}

#[test]
fn both_spellings_of_a_flag_work() {
    assert_eq!(launch("--cache-match-threshold 0.7").routing.cache_threshold, 0.7);
    assert_eq!(launch("--spill-abs-threshold 3").routing.balance_abs_threshold, 3);
    assert_eq!(launch("--sticky-key-idle-secs 60").routing.max_idle_secs, 60);
    assert_eq!(
        launch("--model-path /m").tokenizer.tokenizer_path,
        Some(PathBuf::from("/m"))
    );
}
