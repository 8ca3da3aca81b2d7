"""The options of a worker: parsing, checks, sources, sealing."""

import argparse
import json
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sglang.srt.arg_groups.absent import ABSENT_FLAGS, why_absent
from sglang.srt.arg_groups.declaration import Option, options_of
from sglang.srt.arg_groups.model import DTYPE_CHOICES, LOAD_FORMAT_CHOICES
from sglang.srt.extension_points import RADIX_CACHE_BACKENDS
from sglang.srt.mem_cache.registry import (
    TreeCacheBuildContext,
    create_tree_cache,
    register_radix_cache_backend,
    registered_radix_cache_backends,
)
from sglang.srt.model_executor.dtype import resolve_dtype
from sglang.srt.model_loader.loader import resolve_load_format
from sglang.srt.server_args import (
    PortArgs,
    SealedError,
    ServerArgs,
    prepare_server_args,
    resolve_server_args,
    with_model_path,
)


def parse(*argv: str) -> ServerArgs:
    return prepare_server_args(["--model-path", "dummy", *argv])


def error_of(capsys: pytest.CaptureFixture[str], *argv: str, model: bool = True) -> str:
    flags = ["--model-path", "dummy", *argv] if model else list(argv)
    with pytest.raises(SystemExit) as ended:
        prepare_server_args(flags)
    assert ended.value.code == 2
    text = capsys.readouterr().err
    assert len(text.strip().splitlines()) == 1
    return text


def test_documented_defaults() -> None:
    args = ServerArgs(model_path="dummy")
    assert (args.host, args.port, args.page_size, args.schedule_policy) == (
        "127.0.0.1", 30000, 1, "fcfs",
    )  # fmt: skip
    assert (args.served_model_name, args.tokenizer_path) == ("dummy", "dummy")
    assert (args.chunked_prefill_size, args.max_prefill_tokens) == (512, 16384)
    assert (args.device, args.stream_interval, args.watchdog_timeout) == ("cpu", 1, 300.0)
    assert args.random_seed is not None


def test_flags_aliases_and_switches() -> None:
    args = prepare_server_args(
        ["--model", "m", "--smg-grpc-mode", "--eviction-policy", "lru", "--port=31000",
         "--schedule-policy", "lpm", "--max-running-requests", "3"]
    )  # fmt: skip
    assert (args.model_path, args.grpc_mode, args.port) == ("m", True, 31000)
    assert (args.schedule_policy, args.max_running_requests) == ("lpm", 3)


def test_default_chunk_is_whole_pages() -> None:
    assert parse("--page-size", "24").chunked_prefill_size == 504
    assert parse("--page-size", "8192").chunked_prefill_size == 8192


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--page-size", "0"], ("--page-size", ">= 1", "0")),
        (["--page-size", "two"], ("--page-size", "whole number", "two")),
        (["--port", "70000"], ("--port", "65535", "70000")),
        (["--mem-fraction-static", "1.5"], ("--mem-fraction-static", "<= 1", "1.5")),
        (["--device", "tpu"], ("--device", "cpu", "cuda", "tpu")),
        (["--dtype", "int8"], ("--dtype", "bfloat16", "int8")),
        (["--schedule-policy", "sjf"], ("--schedule-policy", "lpm", "sjf")),
        (["--attention-backend", "nope"], ("--attention-backend", "torch_native", "nope")),
        (["--chunked-prefill-size", "10", "--page-size", "4"], ("multiple of --page-size", "10")),
        (["--chunked-prefill-size", "0"], ("--chunked-prefill-size", "-1", "0")),
        (["--grpc-port", "30000"], ("--grpc-port", "--port", "30000")),
        (["--grpc-mode", "--grpc-port", "1"], ("--grpc-mode", "--grpc-port")),
        (["--grpc-mode", "--api-key", "k"], ("--api-key", "--grpc-mode")),
        (["--preferred-sampling-params", "{"], ("--preferred-sampling-params", "JSON")),
        (["--preferred-sampling-params", "[]"], ("--preferred-sampling-params", "object")),
        (["--default-priority-value", "99999999999"], (">= -2147483648 and <= 2147483647",)),
        (["--host", ""], ("--host", "empty")),
        (["--modle-path", "x"], ("--modle-path", "did you mean --model-path?")),
        (["--page_size", "4"], ("did you mean --page-size?",)),
        (["--nope"], ("unknown option --nope; --help lists all options",)),
        (["--log-file", "x"], ("unknown option --log-file; --help lists all options",)),
        (["--model-type", "llm"], ("--model-type", "`sglang serve`")),
        (["stray"], ("stray",)),
        (["--tp-size", "2"], ("--tp-size", "smg")),
        (["--quantization=fp8"], ("--quantization", "GGUF")),
        (["--lora-backend", "triton"], ("--lora-backend", "computed by torch")),
        (["--enable-lora"], ("--enable-lora", "--max-lora-rank", "--lora-target-modules")),
        (["--lora-paths", "a=x", "a=y"], ("--lora-paths", "'a' is given twice")),
        (["--lora-paths", "a", "--served-model-name", "m:1"], ("--served-model-name", "'m:1'")),
        (["--lora-paths", "=x"], ("--lora-paths", "NAME=PATH")),
        (["--lora-paths", '{"lora_name": "a", "path": "x"}'], ("unknown key 'path'",)),
        (["--lora-paths", "a", "--lora-target-modules", "w"], ("q_proj", "'w'")),
        (["--lora-paths", "a", "--max-loaded-loras", "2"], ("--max-loras-per-batch (8)",)),
        (["--speculative-algorithm", "EAGLE"], ("--speculative-algorithm", "not served by this")),
        (["--speculative-algorithm", "x"], ("Unknown speculative algorithm name: x", "none")),
        (["--speculative-num-steps", "3"], ("--speculative-num-steps", "a plugin's algorithm")),
        (["--tool-call-parser", "llama3"], ("--tool-call-parser", "does not parse tool calls")),
        (["--shutdown-grace-period-secs", "-1"], ("--shutdown-grace-period-secs", ">= 0", "-1")),
    ],
)
def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], argv: list[str], expected: tuple[str, ...]
) -> None:
    text = error_of(capsys, *argv)
    for part in expected:
        assert part in text


@pytest.mark.parametrize("option", options_of(ServerArgs), ids=lambda option: option.name)
def test_a_keyword_of_a_wrong_type_is_refused_by_name(option: Option) -> None:
    for value in ("x", 1, 1.5, True, None, [1], {}, object()):
        try:
            ServerArgs(**{"model_path": "dummy", option.name: value}).check_server_args()
        except ValueError as error:
            assert "--" in str(error)
    with pytest.raises(ValueError, match=rf"^{option.flag}: expected .+, got "):
        ServerArgs(**{"model_path": "dummy", option.name: object()})


def test_a_secret_of_a_wrong_type_is_not_shown() -> None:
    with pytest.raises(ValueError, match="--api-key: expected text or none, got .* type int$"):
        ServerArgs(model_path="dummy", api_key=1234)  # type: ignore[arg-type]


def test_model_path_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--model-path is required" in error_of(capsys, model=False)


def test_no_abbreviations(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean" in error_of(capsys, "--context-len", "5")


def test_checked_options_are_sealed() -> None:
    args = ServerArgs(model_path="dummy")
    args.port = 1234
    args.check_server_args()
    with pytest.raises(SealedError, match="port"):
        args.port = 5
    again = pickle.loads(pickle.dumps(args))
    assert again == args and again.sealed


def test_direct_construction_is_checked_too() -> None:
    args = ServerArgs(model_path="dummy", page_size=0)
    with pytest.raises(ValueError, match="--page-size must be >= 1, got 0"):
        args.check_server_args()
    with pytest.raises(ValueError, match="whole number"):
        ServerArgs(model_path="dummy", port="80").check_server_args()  # type: ignore[arg-type]


def test_found_model_keeps_its_name() -> None:
    found = with_model_path(parse(), "/models/x")
    assert (found.model_path, found.tokenizer_path, found.served_model_name) == (
        "/models/x", "/models/x", "dummy",
    )  # fmt: skip
    own = with_model_path(parse("--tokenizer-path", "/t"), "/models/x")
    assert own.tokenizer_path == "/t"


def test_a_prefix_cache_may_be_registered_after_parsing() -> None:
    args = parse("--radix-cache-backend", "later")
    context = TreeCacheBuildContext(args, params=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError) as caught:
        create_tree_cache(context)
    text = str(caught.value)
    assert "--radix-cache-backend='later' is not registered." in text
    assert str(registered_radix_cache_backends()) in text
    assert "register_radix_cache_backend(...)" in text
    try:
        register_radix_cache_backend("later", lambda ctx: ctx)  # type: ignore[arg-type,return-value]
        assert create_tree_cache(context) is context
    finally:
        RADIX_CACHE_BACKENDS.pop("later", None)


def test_every_choice_is_implemented(tmp_path: Path) -> None:
    for name in DTYPE_CHOICES:
        assert resolve_dtype(name, torch.device("cpu")).is_floating_point
    gguf, folder = (SimpleNamespace(is_gguf=is_gguf, model_path="m") for is_gguf in (True, False))
    for name in LOAD_FORMAT_CHOICES:
        config = folder if name == "safetensors" else gguf
        assert resolve_load_format(config, name) in ("gguf", "safetensors", "dummy")
    options = {option.name: option for option in options_of(ServerArgs)}
    for name in ("attention_backend", "schedule_policy", "radix_eviction_policy", "device"):
        assert getattr(parse(), name) in options[name].choices.names()


def test_attention_backend_suits_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse().attention_backend == "torch_native"
    assert ServerArgs(model_path="dummy", device="cuda").attention_backend == "triton"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert parse("--attention-backend", "triton").attention_backend == "triton"


def test_triton_on_a_cpu_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in (None, "0", ""):
        monkeypatch.delenv("TRITON_INTERPRET", raising=False)
        if value is not None:
            monkeypatch.setenv("TRITON_INTERPRET", value)
        text = error_of(capsys, "--attention-backend", "triton")
        for part in ("--attention-backend triton", "CUDA", "torch_native", "TRITON_INTERPRET=1"):
            assert part in text


def test_none_lifts_the_limit_of_the_queue() -> None:
    assert parse().max_queued_requests == 4096
    assert parse("--max-queued-requests", "none").max_queued_requests is None


def test_secrets_are_not_public() -> None:
    values = parse("--api-key", "s3cret").public_values()
    assert "api_key" not in values and "s3cret" not in json.dumps(values)


# ------------------------------------------------------------------ sources


def test_flag_beats_variable_beats_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "server.yaml"
    file.write_text("model-path: from-file\nport: 1001\npage_size: 2\nstream-interval: 5\n")
    monkeypatch.setenv("SGLANG_PORT", "1002")
    monkeypatch.setenv("SGLANG_PAGE_SIZE", "3")
    args, origins = resolve_server_args(["--config", str(file), "--port", "1003"], prog="x")
    assert (args.model_path, args.port, args.page_size, args.stream_interval) == (
        "from-file", 1003, 3, 5,
    )  # fmt: skip
    assert origins == {
        "model_path": "config file", "port": "flag --port",
        "page_size": "variable SGLANG_PAGE_SIZE", "stream_interval": "config file",
    }  # fmt: skip


def test_switch_can_be_turned_off_by_file_and_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "server.json"
    file.write_text('{"disable-radix-cache": true}')
    assert parse("--config", str(file)).disable_radix_cache is True
    monkeypatch.setenv("SGLANG_DISABLE_RADIX_CACHE", "off")
    assert parse("--config", str(file)).disable_radix_cache is False


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.yaml", "prot: 1", "did you mean --port?"),
        ("a.yaml", "port: many", "--port: expected a whole number"),
        ("a.yaml", "[1, 2]", "mapping"),
        ("a.yaml", "a: [", "line 1"),
        ("a.json", "{", "line 1"),
        ("a.toml", "port = = 1\n", "line 1" if sys.version_info >= (3, 11) else ".yaml"),
        ("a.yaml", "model: \udcff", "utf-8"),
        ("a.json", "\udcff", "utf-8"),
        ("a.ini", "port=1", ".yaml"),
    ],
)
def test_wrong_config_files_are_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, text: str, expected: str
) -> None:
    file = tmp_path / name
    file.write_bytes(text.encode(errors="surrogateescape"))
    sentence = error_of(capsys, "--config", str(file))
    assert f"--config {file}: " in sentence and expected in sentence


def test_missing_config_file_and_wrong_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "--config nowhere.yaml: No such file" in error_of(capsys, "--config", "nowhere.yaml")
    monkeypatch.setenv("SGLANG_PORT", "x")
    assert "SGLANG_PORT: expected a whole number" in error_of(capsys)


def test_options_of_the_http_server_are_kept_apart() -> None:
    other = Option("log_json", bool, False, "Log JSON.", "logs", variable_name="SMG_LOG_JSON")
    many = Option("headers", list, ["a"], "Headers.", "requests")
    taken = Option("port", int, 1, "Not this one.", "server")
    args = prepare_server_args(
        ["--model-path", "m", "--log-json", "--headers", "x,y", "--port", "5"],
        extra=lambda: [other, many, taken],
    )
    assert args.front_door == {"log_json": True, "headers": ["x", "y"]}
    assert args.port == 5


def test_variables_of_the_gateway_do_not_disturb_grpc_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_API_KEY", "k")
    monkeypatch.setenv("SMG_LOG_JSON", "1")
    log_json = Option("log_json", bool, False, "Log.", "logs", variable_name="SMG_LOG_JSON")
    argv = ["--model-path", "m"]
    args = prepare_server_args([*argv, "--grpc-mode"], extra=lambda: [log_json])
    assert (args.api_key, args.front_door) == (None, {})
    args = prepare_server_args(argv, extra=lambda: [log_json])
    assert (args.api_key, args.front_door) == ("k", {"log_json": True})


# ------------------------------------------------------------------ declarations


def test_every_option_has_help_and_a_group() -> None:
    for option in options_of(ServerArgs):
        assert option.help.endswith(".") and option.group


def test_documented_parser_hooks() -> None:
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    namespace = parser.parse_args(["--model-path", "dummy", "--port", "9"])
    assert namespace.page_size == 1
    assert ServerArgs.from_cli_args(namespace).port == 9


def test_absent_flags_are_not_options() -> None:
    ours = {flag for option in options_of(ServerArgs) for flag in option.flags}
    assert not ours & set(ABSENT_FLAGS)
    assert not [flag for flag in ours if why_absent(flag)]


def test_help_lists_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        prepare_server_args(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for option in options_of(ServerArgs):
        assert option.flag in text


def test_endpoints_are_in_the_folder() -> None:
    ports = PortArgs.in_folder("/x")
    assert ports.scheduler_input_ipc_name != ports.scheduler_output_ipc_name
    assert ports.scheduler_input_ipc_name.startswith("ipc:///x/")


def test_an_ipv6_host_may_have_the_brackets_of_a_url() -> None:
    assert parse("--host", "[::1]").host == "::1"
    assert parse("--host", "::1").host == "::1"


def test_a_chunk_that_a_hook_has_set_stays_when_the_model_is_found(tmp_path: Path) -> None:
    args = ServerArgs(model_path="demo", page_size=16)
    assert args.chunked_prefill_size == 512
    args.chunked_prefill_size = 2048
    assert with_model_path(args, str(tmp_path)).chunked_prefill_size == 2048


def test_the_default_chunk_follows_the_size_of_a_page(tmp_path: Path) -> None:
    args = ServerArgs(model_path="demo")
    args.page_size = 48
    assert with_model_path(args, str(tmp_path)).chunked_prefill_size == 480


def test_launcher_lets_urgent_requests_through_to_a_full_queue() -> None:
    assert parse("--max-queued-requests", "5").most_waiting == 5
    assert (
        parse("--max-queued-requests", "none", "--enable-priority-scheduling").most_waiting is None
    )
    many = parse("--max-queued-requests", "5", "--enable-priority-scheduling").most_waiting
    assert many is not None and many > 2 * 5
