"""Options of metrics, traces and the log."""

from typing import Any

import pytest

from sglang.srt.server_args import ServerArgs, prepare_server_args


def args(**options: Any) -> ServerArgs:
    made = ServerArgs(model_path="dummy", **options)
    made.check_server_args()
    return made


def test_histograms_are_there_only_when_asked_for() -> None:
    assert args().histogram_buckets is None
    found = args(enable_metrics=True, bucket_inter_token_latency=["0.1", "2"]).histogram_buckets
    assert found is not None
    assert found["inter_token_latency_seconds"] == (0.1, 2.0)
    assert found["time_to_first_token_seconds"][0] == 0.001
    assert found["prompt_tokens_histogram"][0] == 1.0


def test_lists_are_given_with_commas_or_as_words() -> None:
    made = prepare_server_args(
        ["--bucket-time-to-first-token", "0.1,0.2", "0.5", "--prompt-tokens-buckets", "tse",
         "1000", "2", "8", "--model-path", "dummy"]
    )  # fmt: skip
    assert made.bucket_time_to_first_token == ["0.1", "0.2", "0.5"]
    assert made.prompt_tokens_buckets == ["tse", "1000", "2", "8"]


def test_a_config_file_gives_lists_of_numbers(tmp_path: Any) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("model-path: dummy\nenable-metrics: true\nbucket-e2e-request-latency: [1, 2]")
    buckets = prepare_server_args(["--config", str(config)]).histogram_buckets
    assert buckets is not None and buckets["e2e_request_latency_seconds"] == (1.0, 2.0)


def test_labels_are_an_object_of_texts() -> None:
    assert args(extra_metric_labels='{"region": "north"}').metric_labels == {"region": "north"}
    assert args().metric_labels == {}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("extra_metric_labels", "region=north", "--extra-metric-labels must be a JSON object"),
        ("extra_metric_labels", '{"region": 1}', "--extra-metric-labels must be a JSON object"),
        ("extra_metric_labels", '{"a b": "c"}', "cannot name a label"),
        ("extra_metric_labels", '{"__a": "c"}', "cannot name a label"),
        ("extra_metric_labels", '{"le": "c"}', "cannot name a label"),
        ("extra_metric_labels", '{"mode": "c"}', "sets 'mode' itself"),
        ("bucket_time_to_first_token", ["2", "1"], "--bucket-time-to-first-token must hold rising"),
        ("generation_tokens_buckets", ["some"], "--generation-tokens-buckets must be `default`"),
        ("otlp_traces_endpoint", "localhost", "--otlp-traces-endpoint must be HOST:PORT"),
        ("otlp_traces_endpoint", "http://localhost:4317", "must be HOST:PORT"),
        ("otlp_traces_endpoint", "localhost:70000", "must be HOST:PORT"),
        ("log_requests_level", 4, "--log-requests-level"),
        ("log_requests_format", "xml", "--log-requests-format must be one of text, json"),
        ("decode_log_interval", -1, "--decode-log-interval must be >= 0"),
    ],
)
def test_mistakes_are_named(option: str, value: Any, words: str) -> None:
    with pytest.raises(ValueError) as caught:
        args(**{option: value})
    assert words in str(caught.value)


@pytest.mark.parametrize("endpoint", ["127.0.0.1:1", "[::1]:4317", "collector.example:65535"])
def test_endpoints_are_hosts_with_ports(endpoint: str) -> None:
    assert args(otlp_traces_endpoint=endpoint).otlp_traces_endpoint == endpoint
