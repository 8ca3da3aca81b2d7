//! Options of other gateways of this kind that this one knowingly does not have, and what to use instead.

/// Name of an option, without dashes in front, and what a user of it can do.
type Lacking = (&'static str, &'static str);

const NO_PD: &str =
    "prefill and decode on separate workers is not available; list workers that do both in --worker-urls";
const NO_DISCOVERY: &str = "service discovery is not available; list the workers in --worker-urls";
const NO_PARSER: &str = "tool calls and reasoning are not parsed; the answer's text holds them";
const NO_HISTORY: &str = "conversations are not stored; send the whole conversation in each request";
const NO_TLS: &str = "TLS is not available; put a TLS-terminating proxy in front";
const NO_CONTROL_AUTH: &str =
    "there is one key for clients and one for administrators; use --api-key and --admin-api-key";
const NO_WASM: &str = "WASM middleware is not available";
const NO_DP: &str = "data-parallel ranks are not addressed; list each rank's own address in --worker-urls";
const NO_MODELS: &str = "it is not needed: workers of several models can stand together in --worker-urls";
const NO_TOKENIZER_CACHE: &str = "tokenizing is not cached";
const INDEX_IS_BOUNDED: &str = "the index forgets on its own; bound it with --max-tree-size";
const IN_TOKENS: &str = "work is compared in tokens; leave it out";
const USAGE_COUNTS: &str =
    "a worker's KV usage counts in its wait at every choice; weigh it with --least-load-kv-pressure-weight";
const NOTHING_SOFTENED: &str = "choices are those of least cost; leave it out";
const STICKY: &str = "use --policy manual or --policy consistent_hashing";
const GRPC_ONLY: &str = "workers are probed by the gRPC health call";
const NO_SWITCH: &str = "limits hold where they are given; use --tenant-requests-per-minute, \
    --tenant-tokens-per-minute, --tenant-max-concurrent-requests or --tenant-rate-limit-config";
const NO_CLASS_FILE: &str = "the classes are fixed; use --priority-scheduler-enabled and \
    --priority-scheduler-default-max-class, and max_class in the file of --tenant-rate-limit-config";

const TABLE: &[Lacking] = &[
    ("pd-disaggregation", NO_PD),
    ("epd-disaggregation", NO_PD),
    ("prefill", NO_PD),
    ("decode", NO_PD),
    ("encode", NO_PD),
    ("prefill-policy", NO_PD),
    ("decode-policy", NO_PD),
    ("encode-policy", NO_PD),
    ("mini-lb", NO_PD),
    ("service-discovery", NO_DISCOVERY),
    ("selector", NO_DISCOVERY),
    ("service-discovery-port", NO_DISCOVERY),
    ("service-discovery-namespace", NO_DISCOVERY),
    ("prefill-selector", NO_DISCOVERY),
    ("decode-selector", NO_DISCOVERY),
    ("encode-selector", NO_DISCOVERY),
    ("router-selector", NO_DISCOVERY),
    ("discovery-provider", NO_DISCOVERY),
    ("enable-igw", NO_MODELS),
    ("dp-aware", NO_DP),
    ("dp-minimum-tokens-scheduler", NO_DP),
    ("enable-wasm", NO_WASM),
    ("storage-hook-wasm-path", NO_WASM),
    ("reasoning-parser", NO_PARSER),
    ("tool-call-parser", NO_PARSER),
    ("parser", NO_PARSER),
    (
        "mcp-config-path",
        "MCP tools are not called by the gateway; let the client call them",
    ),
    ("history-backend", NO_HISTORY),
    ("oracle-wallet-path", NO_HISTORY),
    ("oracle-dsn", NO_HISTORY),
    ("oracle-connect-descriptor", NO_HISTORY),
    ("postgres-db-url", NO_HISTORY),
    ("redis-url", NO_HISTORY),
    ("redis-retention-days", NO_HISTORY),
    ("tls-cert-path", NO_TLS),
    ("tls-key-path", NO_TLS),
    ("client-cert-path", NO_TLS),
    ("client-key-path", NO_TLS),
    ("ca-cert-paths", NO_TLS),
    ("control-plane-api-keys", NO_CONTROL_AUTH),
    ("control-plane-audit-enabled", NO_CONTROL_AUTH),
    ("disable-audit-logging", NO_CONTROL_AUTH),
    ("jwt-issuer", NO_CONTROL_AUTH),
    ("jwt-audience", NO_CONTROL_AUTH),
    ("jwt-jwks-uri", NO_CONTROL_AUTH),
    ("jwt-role-claim", NO_CONTROL_AUTH),
    ("jwt-role-mapping", NO_CONTROL_AUTH),
    ("tenant-api-key", NO_CONTROL_AUTH),
    (
        "enable-mesh",
        "gateways do not gossip; run several with the same --worker-urls",
    ),
    (
        "mesh-server-name",
        "gateways do not gossip; run several with the same --worker-urls",
    ),
    (
        "mesh-host",
        "gateways do not gossip; run several with the same --worker-urls",
    ),
    (
        "mesh-port",
        "gateways do not gossip; run several with the same --worker-urls",
    ),
    (
        "mesh-peer-urls",
        "gateways do not gossip; run several with the same --worker-urls",
    ),
    ("tokenizer-cache-enable-l0", NO_TOKENIZER_CACHE),
    ("tokenizer-cache-l0-max-entries", NO_TOKENIZER_CACHE),
    ("tokenizer-cache-l0-max-memory", NO_TOKENIZER_CACHE),
    ("tokenizer-cache-enable-l1", NO_TOKENIZER_CACHE),
    ("tokenizer-cache-l1-max-memory", NO_TOKENIZER_CACHE),
    ("eviction-interval", INDEX_IS_BOUNDED),
    ("eviction-interval-secs", INDEX_IS_BOUNDED),
    ("cache-ttl-secs", INDEX_IS_BOUNDED),
    ("block-size", INDEX_IS_BOUNDED),
    (
        "prefix-hash-balance-abs-threshold",
        "the bound is a share of the mean alone; use --prefix-hash-load-factor",
    ),
    ("power-of-two-load-metric", IN_TOKENS),
    ("least-load-mean-prefill-tokens", IN_TOKENS),
    (
        "least-load-max-waiting-requests",
        "what waits at a worker counts in its wait; bound what runs with --max-concurrent-requests",
    ),
    ("balance-token-usage-threshold", USAGE_COUNTS),
    ("overload-token-usage-threshold", USAGE_COUNTS),
    ("overlap-decay", NOTHING_SOFTENED),
    ("selection-temperature", NOTHING_SOFTENED),
    ("selection-policy", "use --policy"),
    (
        "selection-accounting-ttl-ms",
        "a choice counts until its request ends; leave it out",
    ),
    ("routing-key-override", STICKY),
    ("sticky-sessions", STICKY),
    (
        "routing-key-headers",
        "the key is in the header x-smg-routing-key or the field routing_key",
    ),
    ("health-check-endpoint", GRPC_ONLY),
    ("health-check-port", "health routes are on the main port"),
    ("tenant-rate-limit-enabled", NO_SWITCH),
    ("priority-scheduler-config", NO_CLASS_FILE),
    (
        "priority-scheduler-tenant-metric-top-n",
        "no series has tenants as labels",
    ),
    (
        "cors-allowed-origins",
        "CORS headers are not sent; put a proxy in front for browsers",
    ),
    ("log-dir", "logs go to standard error; redirect them"),
    (
        "prometheus-duration-buckets",
        "the buckets of duration metrics are fixed",
    ),
    (
        "backend",
        "workers are those of this project, over gRPC; leave it out",
    ),
    (
        "runtime",
        "workers are those of this project, over gRPC; leave it out",
    ),
    (
        "connection-mode",
        "the scheme of each worker's URL decides: grpc:// or unix://",
    ),
];

/// What to do instead of the option `name` (with dashes between words), if it is one that is knowingly lacking.
pub(crate) fn instead_of(name: &str) -> Option<&'static str> {
    TABLE
        .iter()
        .find(|(lacking, _)| *lacking == name)
        .map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lacking_option_exists() {
        let command = crate::command::options();
        for (name, _) in TABLE {
            assert!(
                command.get_arguments().all(|arg| arg.get_long() != Some(name)),
                "--{name} exists"
            );
        }
    }
}
