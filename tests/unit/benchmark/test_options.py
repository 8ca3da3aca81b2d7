"""The options of the benchmark."""

import pytest

from sglang.benchmark.options import Options, parse

IDS = ("--dataset-name", "random-ids")


def test_documented_defaults() -> None:
    options = parse(["--dataset-path", "f"], "bench")
    assert (options.backend, options.dataset_name, options.num_prompts) == (
        "sglang", "sharegpt", 1000,
    )  # fmt: skip
    assert (options.random_input_len, options.random_output_len) == (1024, 1024)
    assert (options.gsp_num_groups, options.gsp_prompts_per_group) == (64, 16)
    assert (options.gsp_system_prompt_len, options.gsp_question_len) == (2048, 128)
    assert (options.request_rate, options.warmup_requests, options.seed) == (float("inf"), 1, 42)
    assert (options.temperature, options.top_p, options.ready_check_timeout_sec) == (0.0, 1.0, 60.0)
    assert options.url == "http://0.0.0.0:30000"
    assert options == Options(dataset_path="f")


def test_address_headers_goals_and_extra_body() -> None:
    options = parse(
        [*IDS, "--backend", "vllm", "--host", "h", "--header", "a=b=c", "d=e",
         "--goodput", "ttft:200", "e2el:1500.5", "--extra-request-body", '{"top_k": 5}'],
        "bench",
    )  # fmt: skip
    assert options.url == "http://h:8000"
    assert options.headers == {"a": "b=c", "d": "e"}
    assert options.goals == {"ttft": 200.0, "e2el": 1500.5}
    assert options.extra_body == {"top_k": 5}
    assert parse([*IDS, "--base-url", "http://x:1/"], "bench").url == "http://x:1"
    assert parse([*IDS, "--host", "::1"], "bench").url == "http://[::1]:30000"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ([], ("--dataset-path", "sharegpt", "random-ids")),
        ([*IDS, "--num-prompts", "0"], ("--num-prompts", "at least 1", "0")),
        ([*IDS, "--request-rate", "0"], ("--request-rate", "above 0")),
        ([*IDS, "--request-rate", "nan"], ("--request-rate", "above 0")),
        ([*IDS, "--random-range-ratio", "2"], ("--random-range-ratio", "0 to 1", "2")),
        ([*IDS, "--max-concurrency", "0"], ("--max-concurrency", "at least 1")),
        ([*IDS, "--goodput", "itl:5"], ("--goodput", "ttft, tpot, e2el", "itl:5")),
        ([*IDS, "--goodput", "ttft:x"], ("--goodput", "ttft:x")),
        ([*IDS, "--header", "nothing"], ("--header", "KEY=VALUE", "nothing")),
        ([*IDS, "--extra-request-body", "["], ("--extra-request-body", "JSON")),
        ([*IDS, "--extra-request-body", "[]"], ("--extra-request-body", "object")),
        ([*IDS, "--backend", "vllm", "--flush-cache"], ("--flush-cache", "vllm")),
        ([*IDS, "--backend", "vllm-chat", "--tokenize-prompt"], ("--tokenize-prompt", "vllm-chat")),
        (["--dataset-name", "openai", "--dataset-path", "f"], ("openai", "chat backend", "sglang")),
        (
            ["--dataset-name", "mooncake", "--dataset-path", "f", "--request-rate", "2"],
            ("--request-rate", "--mooncake-slowdown-factor"),
        ),
        ([*IDS, "--num-prompt", "5"], ("--num-prompt",)),
        ([*IDS, "--backend", "trt"], ("--backend", "sglang-oai-chat")),
        ([*IDS, "--port", "99999"], ("--port", "65535")),
    ],
)
def test_mistakes_end_with_a_sentence(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv, "bench")
    assert ended.value.code == 2
    text = capsys.readouterr().err.splitlines()[-1]
    for part in expected:
        assert part in text


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], "bench")
    assert "--mooncake-slowdown-factor" in capsys.readouterr().out
