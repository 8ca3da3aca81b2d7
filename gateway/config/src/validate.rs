//! Rules that one option alone cannot express. Every error names the flag.

use std::collections::HashSet;
use std::net::IpAddr;

use crate::error::ConfigError;
use crate::layers::clip;
use crate::options::{GatewayConfig, Policy};

impl GatewayConfig {
    pub(crate) fn validate(&self) -> Result<(), ConfigError> {
        check_worker_urls(&self.server.worker_urls)?;
        self.check_policy()?;
        self.models.validate()?;
        self.check_listeners()?;
        self.check_limits()?;
        check_collector(&self.tracing.otlp_traces_endpoint)?;
        self.check_tenants()?;
        check_headers("--request-id-headers", &self.requests.request_id_headers)
    }

    fn check_policy(&self) -> Result<(), ConfigError> {
        let workers = self.server.worker_urls.len();
        if self.routing.policy == Policy::PowerOfTwo && workers < 2 {
            return fail(format!(
                "--policy power_of_two needs at least two --worker-urls, got {workers}; add workers or use another policy"
            ));
        }
        Ok(())
    }

    fn check_listeners(&self) -> Result<(), ConfigError> {
        for (flag, host) in [
            ("--host", &self.server.host),
            ("--prometheus-host", &self.metrics.prometheus_host),
        ] {
            check_host(flag, host)?;
        }
        if self.metrics.prometheus_port == Some(self.server.port) {
            return fail(format!(
                "--prometheus-port must differ from --port, both are {}; leave it out: the main port serves /metrics too",
                self.server.port
            ));
        }
        Ok(())
    }

    fn check_limits(&self) -> Result<(), ConfigError> {
        if self.requests.queue_size > 0 && self.requests.queue_timeout_secs == 0 {
            return fail("--queue-timeout-secs must be at least 1 while --queue-size is above 0".to_owned());
        }
        let (initial, max) = (
            self.retry.retry_initial_backoff_ms,
            self.retry.retry_max_backoff_ms,
        );
        if initial > max {
            return fail(format!(
                "--retry-initial-backoff-ms must be at most --retry-max-backoff-ms, got {initial} and {max}"
            ));
        }
        Ok(())
    }

    /// Nothing in the file may be without effect.
    fn check_tenants(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        check_headers(
            "--tenant-header-name",
            std::slice::from_ref(&limits.tenant_header_name),
        )?;
        let Some(file) = &limits.tenant_rate_limit_config else {
            return Ok(());
        };
        if let (Some(name), false) = (file.header_tenant(), limits.trust_tenant_header) {
            return fail(format!(
                "--tenant-rate-limit-config: a tenant is named by a header (`header:{}`), which nobody believes; add \
                 --trust-tenant-header",
                clip(name)
            ));
        }
        if file.has_classes() && !limits.priority_scheduler_enabled {
            return fail(
                "--tenant-rate-limit-config: max_class means nothing without --priority-scheduler-enabled; add it or \
                 leave max_class out"
                    .to_owned(),
            );
        }
        Ok(())
    }
}

fn fail(message: String) -> Result<(), ConfigError> {
    Err(ConfigError::new(message))
}

fn check_host(flag: &str, host: &str) -> Result<(), ConfigError> {
    if host.is_empty() || host.contains(char::is_whitespace) || host.contains('/') {
        return fail(format!(
            "{flag} must be an address or a host name of this machine, got `{}`",
            clip(host)
        ));
    }
    let parts: Vec<&str> = host.split('.').collect();
    let is_dotted = parts.len() == 4 && parts.iter().all(|part| part.bytes().all(|b| b.is_ascii_digit()));
    if (is_dotted || host.contains([':', '[', ']'])) && host.parse::<IpAddr>().is_err() {
        return fail(format!(
            "{flag} must be an address or a host name of this machine; `{}` is no IP address",
            clip(host)
        ));
    }
    Ok(())
}

fn check_worker_urls(urls: &[String]) -> Result<(), ConfigError> {
    let mut seen = HashSet::new();
    for url in urls {
        check_worker_url("--worker-urls:", url)?;
        if !seen.insert(url.trim_end_matches('/')) {
            return fail(format!("--worker-urls: `{}` is given twice", clip(url)));
        }
    }
    Ok(())
}

/// Whether a worker can be reached under `url`; the error begins with `what`.
pub fn check_worker_url(what: &str, url: &str) -> Result<(), ConfigError> {
    let complete = match url.split_once("://") {
        Some(("grpc", address)) => has_port(address),
        Some(("unix", path)) => path.starts_with('/') && path.len() > 1,
        Some(("http" | "https", _)) => {
            return fail(format!(
                "{what} workers are reached over gRPC, not HTTP, got `{}`; start the worker with --grpc-port or \
                 --grpc-mode and give grpc://HOST:PORT",
                clip(url)
            ));
        }
        _ => false,
    };
    if complete {
        return Ok(());
    }
    fail(format!(
        "{what} must be grpc://HOST:PORT or unix:///PATH, got `{}`",
        clip(url)
    ))
}

fn check_collector(address: &str) -> Result<(), ConfigError> {
    if has_port(address.strip_prefix("http://").unwrap_or(address)) {
        return Ok(());
    }
    fail(format!(
        "--otlp-traces-endpoint must be HOST:PORT, like localhost:4317, got `{}`",
        clip(address)
    ))
}

fn has_port(address: &str) -> bool {
    let address = address.strip_suffix('/').unwrap_or(address);
    address.rsplit_once(':').is_some_and(|(host, port)| {
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let plain = !host.contains([':', '/', '@']) && !host.contains(char::is_whitespace);
        !host.is_empty() && (bracketed || plain) && port.parse::<u16>().is_ok_and(|port| port > 0)
    })
}

fn check_headers(flag: &str, names: &[String]) -> Result<(), ConfigError> {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    match names
        .iter()
        .find(|name| name.is_empty() || !name.chars().all(is_token))
    {
        Some(name) => fail(format!(
            "{flag} must be names of HTTP headers, got `{}`",
            clip(name)
        )),
        None => Ok(()),
    }
}
