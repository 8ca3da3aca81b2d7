"""The options of the benchmark."""

import pytest

from sglang.benchmark.options import Options, parse

IDS = ("--dataset-name", "random-ids")
GROUPS = ("--dataset-name", "generated-shared-prefix")


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
    assert (options.gsp_num_turns, options.mooncake_num_rounds) == (1, 1)
    assert (options.lora_name, options.lora_request_distribution) == ([], None)
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
        ([*IDS, "--num-prompt", "5"], ("--num-prompt;", "did you mean --num-prompts?")),
        ([*IDS, "--num_prompts=5"], ("--num_prompts;", "did you mean --num-prompts?")),
        ([*IDS, "--zzz"], ("unknown option --zzz", "--help")),
        ([*IDS, "zzz"], ("unexpected argument 'zzz'",)),
        ([*IDS, "--backend", "sglang-oia"], ("did you mean 'sglang-oai'", "vllm-chat")),
        ([*IDS, "--lora-request-distribution", "skew"], ("did you mean 'skewed'",)),
        ([*IDS, "--lora-request-distribution", "skewed"], ("needs adapters", "--lora-name")),
        ([*IDS, "--lora-name", ""], ("--lora-name", "empty")),
        ([*IDS, "--lora-name", "a", "--backend", "sglang-embedding"], ("--lora-name", "embeds")),
        ([*GROUPS, "--gsp-num-turns", "0"], ("--gsp-num-turns", "at least 1")),
        ([*GROUPS, "--gsp-num-turns", "2", "--tokenize-prompt"], ("--gsp-num-turns", "text")),
        ([*GROUPS, "--gsp-num-turns", "2", "--apply-chat-template"], ("chat backend",)),
        ([*GROUPS, "--gsp-num-turns", "2", "--backend", "vllm-embedding"], ("no answers",)),
        (
            ["--dataset-name", "mooncake", "--dataset-path", "f", "--mooncake-num-rounds", "2",
             "--backend", "sglang-embedding"],
            ("--mooncake-num-rounds must be 1",),
        ),
        ([*IDS, "--port", "99999"], ("--port", "65535")),
    ],
)  # fmt: skip
def test_mistakes_end_with_a_sentence(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: tuple[str, ...]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(argv, "bench")
    assert ended.value.code == 2
    text = capsys.readouterr().err.splitlines()[-1]
    for part in expected:
        assert part in text


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--profile"], "the server has no /start_profile"),
        (["--profile-num-steps", "5"], "the server has no /start_profile"),
        (["--pd-separated"], "run in one worker"),
        (["--mooncake-workload", "conversation"], "--dataset-path names the file"),
        (["--image-count", "2"], "prompts are text"),
        (["--image_resolution=1080p"], "prompts are text"),
        *[(["--backend", name], "its API is not spoken") for name in ("trt", "gserver", "truss")],
        *[
            (["--dataset-name", name], "custom takes the prompts")
            for name in ("longbench_v2", "speed-bench", "agentic-trace")
        ],
        *[(["--dataset-name", name], "it has images") for name in ("mmmu", "image")],
    ],
)
def test_what_is_not_done_is_refused_by_name(
    capsys: pytest.CaptureFixture[str], argv: list[str], reason: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse([*IDS, *argv], "bench")
    assert ended.value.code == 2
    text = capsys.readouterr().err.splitlines()[-1]
    named = argv[1] if argv[0] in ("--backend", "--dataset-name") else argv[0].split("=")[0]
    assert named in text
    assert reason in text


def test_help_shows_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--help"], "bench")
    assert "--mooncake-slowdown-factor" in capsys.readouterr().out
