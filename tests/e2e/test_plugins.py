"""Installed plugins in real processes: hooks, a speculative algorithm, options, failures."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import plugin_packages
from tests.e2e import processes
from tests.e2e.processes import Server, call

PACKAGES = ["telling-plugin", "delegating-speculation", "failing-plugin"]
IN_THE_LAUNCHER = {"add_cli_args", "__post_init__", "check_server_args"}
IN_THE_SCHEDULER = {
    "Scheduler", "get_next_batch_to_run", "run_batch", "process_batch_result",
    "worker", "forward_batch_generation", "default_running_requests",
}  # fmt: skip
GREEDY = {"temperature": 0, "max_new_tokens": 8}
ASK = {"text": "The capital of France is", "sampling_params": GREEDY}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with all packages but the guide's own example."""
    site = tmp_path_factory.mktemp("plugins") / "site"
    for name in PACKAGES:
        wheel = plugin_packages.build_wheel(name, tmp_path_factory.mktemp(name))
        plugin_packages.install(wheel, site)
    return site


@pytest.fixture(scope="module")
def plugged(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`python -m sglang.launch_server --model-path demo` where the packages are installed."""
    with processes.front_door(
        tmp_path_factory.mktemp("plugged"), "--dtype", "float32", "--label", "blue",
        "--speculative-algorithm", "delegate", "--disable-overlap-schedule",
        env={"PYTHONPATH": str(installed)},
    ) as server:  # fmt: skip
        yield server


def told(server: Server) -> dict[str, set[int]]:
    """Which hooks ran, and in which processes."""
    found: dict[str, set[int]] = {}
    for what, pid in re.findall(r"telling-plugin: (\S+) in process (\d+)", server.log_text()):
        found.setdefault(what, set()).add(int(pid))
    return found


def test_hooks_fire_in_the_launcher_and_in_the_scheduler(plugged: Server) -> None:
    ran = told(plugged)
    assert set(ran) == IN_THE_LAUNCHER | IN_THE_SCHEDULER
    launcher = plugged.process.pid
    assert all(ran[what] == {launcher} for what in IN_THE_LAUNCHER)
    (scheduler,) = set.union(*(ran[what] for what in IN_THE_SCHEDULER))
    assert scheduler != launcher


def test_a_chat_is_answered_with_the_same_tokens_as_without(
    plugged: Server, server: Server
) -> None:
    status, reply, _ = call(
        f"{plugged.url}/v1/chat/completions",
        {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4},
    )
    assert (status, reply["usage"]["completion_tokens"]) == (200, 4)
    answers = [call(f"{each.url}/generate", ASK)[1]["text"] for each in (plugged, server)]
    assert answers[0] == answers[1]


def test_a_plugin_s_flag_reaches_its_hook_and_the_clients(plugged: Server) -> None:
    assert call(f"{plugged.url}/generate", ASK)[1]["meta_info"]["weight_version"] == "labelled blue"


def test_the_replaced_class_is_the_one_that_is_built(plugged: Server) -> None:
    assert plugged.log_text().count("Enhanced scheduler initialized!") == 1


def test_the_algorithm_s_worker_runs_the_batches(plugged: Server) -> None:
    assert plugged.log_text().count("delegating-speculation: the first step") == 1


def test_a_speculative_worker_s_answers_keep_to_their_constraint(plugged: Server) -> None:
    sampling = {"regex": "[a-f]{6}", "max_new_tokens": 16, "temperature": 1.5}
    status, reply, _ = call(f"{plugged.url}/generate", {**ASK, "sampling_params": sampling})
    assert status == 200, reply
    assert re.fullmatch("[a-f]{6}", reply["text"])
    assert reply["meta_info"]["finish_reason"]["type"] == "stop"


def test_the_model_s_overrides_are_in_force_and_logged(plugged: Server) -> None:
    info = call(f"{plugged.url}/server_info")[1]
    assert info["max_prefill_tokens"] == 30 * 100
    assert "Model override options_of_llama: max_prefill_tokens = 3000 (was" in plugged.log_text()


def test_failing_plugins_are_logged_by_name_and_harm_nothing(plugged: Server) -> None:
    log = plugged.log_text()
    assert "'fails_on_import' of failing-plugin cannot be loaded: ModuleNotFoundError" in log
    assert "plugin 'fails_when_called' (distribution failing-plugin) failed" in log
    assert "RuntimeError: the vendor's device is not there" in log
    target = "sglang.srt.managers.scheduler.Scheduler.schedule"
    assert f"hook target {target} (AFTER hook failing_plugin:break_it of plugin" in log
    assert "Scheduler has no 'schedule'" in log or "MyScheduler has no 'schedule'" in log


def sglang(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sglang.cli.main", *argv],
        capture_output=True, text=True, timeout=processes.START_GUARD, env={**os.environ, **env},
    )  # fmt: skip


def test_the_list_shows_every_plugin_with_its_state(installed: Path) -> None:
    allowed = "telling,hooks_nothing,delegating_speculation,fails_when_called"
    done = sglang("plugins", "list", PYTHONPATH=str(installed), SGLANG_PLUGINS=allowed)
    assert done.returncode == 0, done.stderr
    text = "\n".join(re.sub(" {2,}", " | ", line) for line in done.stdout.splitlines())
    for line in (
        "general plugin | telling | telling-plugin | loaded",
        "general plugin | enhanced | telling-plugin | off: SGLANG_PLUGINS does not list it",
        "general plugin | fails_when_called | failing-plugin | failed: RuntimeError: the vendor's",
        "hook | sglang.srt.server_args.ServerArgs.__post_init__ | plugin 'telling' (distribution "
        "telling-plugin) | registered, AFTER",
        "speculative algorithm | DELEGATE | delegating_speculation:worker_class | registered",
        "model override | LlamaForCausalLM | options_of_llama | registered",
        "attention backend | torch_native | sglang.srt.layers.attention.torch_native:",
        "serve backend | llm | sglang | built in",
    ):
        assert line in text


def test_an_algorithm_of_a_plugin_checks_the_options(installed: Path) -> None:
    done = sglang("serve", "demo", "--speculative-algorithm", "delegate", "--page-size", "16",
                  PYTHONPATH=str(installed), SGLANG_PLUGINS="delegating_speculation")  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2, "sglang serve: delegate needs --page-size 1, got 16\n",
    )  # fmt: skip


def test_the_guide_s_example_with_the_guide_s_command(tmp_path: Path) -> None:
    """`sglang serve --model-path <model>`: look for "Scheduler initialized!" in logs."""
    wheel = plugin_packages.build_wheel("my-general-plugin", tmp_path)
    site = plugin_packages.install(wheel, tmp_path / "site")
    port = processes.free_port()
    server = processes.start(
        [sys.executable, "-m", "sglang.cli.main", "serve", "--model-path", "demo",
         "--port", str(port)],
        port, tmp_path / "log", {"PYTHONPATH": str(site)},
    )  # fmt: skip
    try:
        server.wait("/readiness")
        assert "Scheduler initialized! gpu_id=0" in server.log_text()
    finally:
        assert server.end(signal.SIGTERM) == 0
