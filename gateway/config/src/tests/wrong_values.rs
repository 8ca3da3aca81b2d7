//! Values that no option takes: one sentence that names the option, what was given, what is allowed and by whom.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use serde_json::json;

use super::{TempFile, error, nothing};
use crate::command::from_map_with;
use crate::{option_schema, parse_with};

/// The error of a start with one environment variable.
fn error_with(name: &str, value: impl Into<OsString>) -> String {
    let value = value.into();
    let environment = |asked: &str| (asked == name).then(|| value.clone());
    parse_with([""; 0], &environment).unwrap_err().to_string()
}

#[test]
fn a_wrong_key_is_not_repeated_in_the_message() {
    let message = parse_with(["--api-key".to_owned(), "my secret".to_owned()], &nothing)
        .unwrap_err()
        .to_string();
    assert!(
        message.contains("--api-key") && !message.contains("secret"),
        "{message}"
    );
}

#[test]
fn unknown_flags_name_the_nearest_one() {
    assert_eq!(
        error("--prot 1"),
        "there is no option --prot; the nearest is --port"
    );
    assert_eq!(
        error("launch --worker-url grpc://a:1"),
        "there is no option --worker-url; the nearest is --worker-urls"
    );
    for (line, says) in [
        ("lunch", "launch"),
        ("-x", "-x"),
        ("config shw", "show"),
        ("completions tcsh", "bash"),
    ] {
        let message = error(line);
        assert!(
            message.contains(says) && !message.contains('\n'),
            "{line}: {message}"
        );
    }
    assert_eq!(error("--zzzz"), "there is no option --zzzz; see smg --help");
}

#[test]
fn lacking_flags_say_what_to_use_instead() {
    for flag in [
        "--pd-disaggregation",
        "--service-discovery",
        "--tool-call-parser=qwen",
        "launch --enable-igw",
        "--sticky-sessions",
        "--power-of-two-load-metric=requests",
    ] {
        let message = error(flag);
        assert!(message.starts_with("this version does not have --"), "{message}");
        assert!(message.contains(": "), "{message}");
    }
}

#[test]
fn bad_values_are_one_sentence_with_the_flag() {
    for (line, flag, says) in [
        ("--port 70000", "--port", "70000"),
        ("--port 0", "--port", "0"),
        ("--port abc", "--port", "a whole number"),
        ("--policy best", "--policy", "cache_aware"),
        ("--cache-threshold 1.5", "--cache-threshold", "from 0 to 1"),
        ("--cache-threshold NaN", "--cache-threshold", "from 0 to 1"),
        (
            "--balance-rel-threshold 0.5",
            "--balance-rel-threshold",
            "from 1 to 1000",
        ),
        ("--max-tree-size 0", "--max-tree-size", "from 1 to 67108864"),
        ("--max-payload-size 10", "--max-payload-size", "from 1024"),
        ("--request-timeout-secs 0", "--request-timeout-secs", "0"),
        (
            "--request-timeout-secs 99999999999999",
            "--request-timeout-secs",
            "99999999999999",
        ),
        ("--max-concurrent-requests -2", "--max-concurrent-requests", "-2"),
        ("--queue-timeout-secs 0", "--queue-timeout-secs", "--queue-size"),
        (
            "--retry-initial-backoff-ms 50000",
            "--retry-initial-backoff-ms",
            "30000",
        ),
        ("--prometheus-port 30000", "--prometheus-port", "--port"),
        (
            "--policy power_of_two --worker-urls grpc://a:1",
            "--policy",
            "at least two",
        ),
        ("--worker-urls http://a:1", "--worker-urls", "not HTTP"),
        ("--worker-urls grpc://a", "--worker-urls", "grpc://HOST:PORT"),
        ("--worker-urls grpc://a:0", "--worker-urls", "grpc://HOST:PORT"),
        (
            "--worker-urls grpc://a:99999",
            "--worker-urls",
            "grpc://HOST:PORT",
        ),
        ("--worker-urls a:1", "--worker-urls", "grpc://HOST:PORT"),
        ("--worker-urls unix://run.sock", "--worker-urls", "unix:///PATH"),
        ("--worker-urls grpc://a:1 grpc://a:1/", "--worker-urls", "twice"),
        ("--worker-urls", "--worker-urls", "value"),
        ("--request-id-headers a:b", "--request-id-headers", "a:b"),
        ("--disable-retries=maybe", "--disable-retries", "maybe"),
        ("--host a/b", "--host", "a/b"),
        ("--port 1 --port 2", "--port", "multiple times"),
    ] {
        let message = error(line);
        assert!(
            message.contains(flag) && message.contains(says),
            "{line}: {message}"
        );
        assert!(
            !message.contains('\n') && !message.contains("Usage"),
            "{line}: {message}"
        );
    }
}

#[test]
fn bad_values_of_policies_are_told_the_same_way() {
    for (line, flag, says) in [
        (
            "--prefix-token-count 0",
            "--prefix-token-count",
            "from 1 to 1000000",
        ),
        (
            "--prefix-hash-load-factor 0.9",
            "--prefix-hash-load-factor",
            "from 1 to 1000",
        ),
        ("--assignment-mode delegate", "--assignment-mode", "min_group"),
        ("--max-idle-secs 0", "--max-idle-secs", "a whole number"),
        (
            "--least-load-default-throughput 0",
            "--least-load-default-throughput",
            "from 1 to",
        ),
        (
            "--least-load-kv-pressure-weight -1",
            "--least-load-kv-pressure-weight",
            "from 0 to 1000",
        ),
    ] {
        let message = error(line);
        assert!(
            message.contains(flag) && message.contains(says),
            "{line}: {message}"
        );
        assert!(
            !message.contains('\n') && !message.contains("Usage"),
            "{line}: {message}"
        );
    }
}

#[test]
fn a_bad_value_in_a_file_names_the_file() {
    let file = TempFile::new("bad.yaml", "port: many\n");
    let message = error(&format!("--config {}", file.path()));
    assert!(
        message.contains("--port") && message.contains(file.path()),
        "{message}"
    );
}

#[test]
fn files_that_cannot_be_used_are_one_sentence() {
    for (name, text, says) in [
        ("syntax.yaml", "a: [", "cannot read"),
        ("syntax.toml", "a = ", "cannot read"),
        ("syntax.json", "{", "cannot read"),
        ("list.json", "[1]", "one key per option"),
        ("suffix.ini", "", ".yaml"),
        ("key.yaml", "prot: 1", "the nearest is `port`"),
        ("nested.yaml", "port: {a: 1}", "port must be"),
        (
            "lacking.yaml",
            "service_discovery: true",
            "does not have `service_discovery`",
        ),
    ] {
        let file = TempFile::new(name, text);
        let message = error(&format!("--config {}", file.path()));
        assert!(message.contains(says), "{name}: {message}");
        assert!(!message.contains('\n'), "{name}: {message}");
    }
    assert!(error("--config /nowhere/x.yaml").contains("/nowhere/x.yaml"));
}

#[test]
fn a_map_with_wrong_options_is_refused() {
    for (map, says) in [
        (
            json!({"worker_url": ["grpc://a:1"]}),
            "the nearest is `worker_urls`",
        ),
        (
            json!({"pd_disaggregation": true}),
            "does not have `pd_disaggregation`",
        ),
        (json!({"port": "x"}), "(given by program)"),
        (json!({"port": 1.5}), "--port"),
        (json!({"port": [1, 2]}), "a whole number, got a list: [1,2]"),
        (json!({"host": {"a": 1}}), "host must be"),
        (json!({"worker_urls": ["http://a:1"]}), "not HTTP"),
    ] {
        let message = from_map_with(map.as_object().unwrap(), &nothing)
            .unwrap_err()
            .to_string();
        assert!(message.contains(says), "{map}: {message}");
    }
}

#[test]
fn numbers_say_which_ones_are_allowed() {
    for (line, says) in [
        ("--port 70000", "from 1 to 65535"),
        ("--port -1", "from 1 to 65535"),
        ("--port 1.5", "from 1 to 65535"),
        ("--prometheus-port=x", "from 1 to 65535"),
        ("--queue-timeout-secs -1", "from 0 to 3155760000"),
        ("--shutdown-grace-period-secs -1", "from 0 to 3155760000"),
        (
            "--shutdown-grace-period-secs 99999999999999999999",
            "from 0 to 3155760000",
        ),
        ("--request-timeout-secs 0", "from 1 to 3155760000"),
        ("--retry-max-backoff-ms -5", "from 1 to 86400000"),
        ("--cb-failure-threshold 0", "from 1 to 4294967295"),
        ("--retry-max-retries 101", "from 1 to 100"),
        ("--balance-abs-threshold -1", "from 0 to 1000000"),
        ("--max-concurrent-requests -2", "from -1 to 1000000"),
        ("--cache-threshold -0.5", "from 0 to 1"),
        ("--retry-backoff-multiplier -1e3", "from 1 to 1000"),
    ] {
        let (flag, value) = line.split_once([' ', '=']).unwrap();
        let message = error(line);
        assert!(
            message.starts_with(&format!("invalid value '{value}' for '{flag} <")) && message.contains(says),
            "{line}: {message}"
        );
        let id = flag.trim_start_matches('-').replace('-', "_");
        let name = format!("SMG_{}", id.to_uppercase());
        let message = error_with(&name, value);
        assert!(
            message.contains(says) && message.ends_with(&format!("(given by environment {name})")),
            "{message}"
        );
    }
}

#[test]
fn every_option_names_the_variable_that_it_does_not_like() {
    for option in option_schema().as_array().unwrap() {
        let (name, env) = (option["name"].as_str().unwrap(), option["env"].as_str().unwrap());
        let bad = match name {
            // Any text is a folder, a file or a key.
            "tokenizer_path" | "chat_template" | "worker_state_file" => continue,
            "api_key" | "admin_api_key" => "two words",
            "request_id_headers" => "a:b",
            _ => "may/be",
        };
        let message = error_with(env, bad);
        assert!(
            message.contains(option["flag"].as_str().unwrap()) && message.contains(env),
            "{message}"
        );
        let not_text = error_with(env, OsString::from_vec(vec![b'a', 0xff]));
        assert!(
            not_text.contains(env) && not_text.contains("not valid UTF-8"),
            "{not_text}"
        );
    }
    assert_eq!(
        error_with("SMG_LOG_JSON", "maybe"),
        "invalid value 'maybe' for '--log-json[=<true|false>]'; allowed are true, false \
         (given by environment SMG_LOG_JSON)"
    );
    let message = error_with("SMG_CONFIG", OsString::from_vec(vec![0xff]));
    assert!(message.contains("SMG_CONFIG"), "{message}");
}

#[test]
fn arguments_that_are_no_text_are_refused_without_their_value() {
    let bytes = |text: &[u8]| OsString::from_vec(text.to_vec());
    let message = parse_with([bytes(b"--host"), bytes(b"key\xff")], &nothing).unwrap_err();
    assert_eq!(
        message.to_string(),
        "argument 2 is not valid UTF-8; write it in UTF-8"
    );
    let message = parse_with([bytes(b"--api-key=key\xff")], &nothing).unwrap_err();
    assert_eq!(
        message.to_string(),
        "argument 1 (--api-key=…) is not valid UTF-8; write it in UTF-8"
    );
}

#[test]
fn a_wrong_flag_is_not_blamed_on_the_environment() {
    let environment = |name: &str| (name == "SMG_PORT").then(|| OsString::from("1234"));
    for line in ["--port abc", "--port", "--port 1 --port 2"] {
        let message = parse_with(line.split(' '), &environment).unwrap_err().to_string();
        assert!(
            message.contains("--port") && !message.contains("SMG_PORT"),
            "{line}: {message}"
        );
    }
}

#[test]
fn every_option_of_a_file_has_its_type() {
    let wrong = [
        json!([1]),
        json!({"a": 1}),
        json!(true),
        json!(1),
        json!(["x", "y"]),
    ];
    for option in option_schema().as_array().unwrap() {
        let name = option["name"].as_str().unwrap();
        let (allowed, fits): (_, &[usize]) = match option["type"].as_str().unwrap() {
            "int" => ("a whole number", &[3]),
            "float" => ("a number", &[3]),
            "bool" => ("true or false", &[2]),
            "list" => ("a list of texts", &[4]),
            _ => ("a text", &[]),
        };
        for (i, value) in wrong.iter().enumerate().filter(|(i, _)| !fits.contains(i)) {
            let file = TempFile::new(&format!("{name}-{i}.json"), &json!({name: value}).to_string());
            let message = error(&format!("--config {}", file.path()));
            assert!(
                message.starts_with(&format!("{name} must be {allowed}")) && message.contains(file.path()),
                "{message}"
            );
            assert_eq!(
                message.contains(&format!(": {value} (given")),
                !name.ends_with("api_key"),
                "{message}"
            );
        }
    }
}

#[test]
fn one_option_under_two_names_is_refused() {
    let file = TempFile::new("twice.yaml", "log_json: true\nlog-json: false\n");
    let message = error(&format!("--config {}", file.path()));
    assert!(
        message.starts_with("`log_json` and `log-json` are the same option"),
        "{message}"
    );
}

#[test]
fn an_address_that_is_none_is_told_before_anything_starts() {
    for host in [
        "999.1.1.1",
        "1.2.3.4.:5",
        "::g",
        "a b",
        "",
        "[::1",
        "::1]",
        "[[::1]]",
        "[]",
        "[localhost]",
        "[127.0.0.1]",
    ] {
        for flag in ["--host", "--prometheus-host"] {
            let message = parse_with([flag, host], &nothing).unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("{flag} must be an address")) && message.contains(host),
                "{message}"
            );
        }
    }
    for host in ["0.0.0.0", "::", "[::1]", "localhost", "127.1", "node-1.example"] {
        assert!(parse_with(["--host", host], &nothing).is_ok(), "{host}");
    }
}

#[test]
fn an_address_with_brackets_is_kept_without_them_wherever_it_comes_from() {
    let file = TempFile::new("brackets.yaml", "host: '[::1]'\nprometheus_host: '[fe80::2]'\n");
    let environment = |name: &str| match name {
        "SMG_HOST" => Some("[::1]".into()),
        "SMG_PROMETHEUS_HOST" => Some("[fe80::2]".into()),
        _ => None,
    };
    let map = json!({"host": "[::1]", "prometheus_host": "[fe80::2]"});
    let configs = [
        super::launch("--host [::1] --prometheus-host [fe80::2]"),
        super::launch(&format!("--config {}", file.path())),
        from_map_with(&serde_json::Map::new(), &environment).unwrap(),
        from_map_with(map.as_object().unwrap(), &nothing).unwrap(),
    ];
    for config in configs {
        assert_eq!(config.server.host, "::1");
        assert_eq!(config.metrics.prometheus_host, "fe80::2");
    }
}

#[test]
fn a_long_value_is_not_repeated_whole() {
    let long = "x\n".repeat(5000);
    let message = parse_with(["--port", &long], &nothing).unwrap_err().to_string();
    assert!(
        message.contains("… (10000 characters)' for '--port <PORT>'") && message.len() < 400,
        "{message}"
    );
    let map = json!({"port": [long]});
    let message = from_map_with(map.as_object().unwrap(), &nothing)
        .unwrap_err()
        .to_string();
    assert!(
        message.starts_with("port must be") && message.len() < 400,
        "{message}"
    );
}
