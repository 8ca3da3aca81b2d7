"""Statements of the guide for serve backends, one test each, with a real installed plugin."""

import argparse
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.cli import serve, serve_backends
from sglang.cli.main import main
from sglang.cli.serve_backends import (
    SERVE_BACKENDS_GROUP,
    ServeBackend,
    ServeBackendRegistry,
    ServeRequest,
)
from tests import plugin_packages
from tests.architecture.budgets import ROOT
from tests.contract.played_backends import MATCH, always, entry_of

pytestmark = pytest.mark.usefixtures("killed")
PLUGIN = "my-sglang-runtime"
MODULE = "my_sglang_runtime.sglang_backend"
EXAMPLE = """
import argparse

from sglang.cli.serve_backends import (
    ServeBackend,
    ServeBackendDetection,
    ServeRequest,
)


def detect(request: ServeRequest) -> ServeBackendDetection:
    if request.model_path is None:
        return ServeBackendDetection.UNKNOWN
    if supports_model(request.model_path):
        return ServeBackendDetection.MATCH
    return ServeBackendDetection.NO_MATCH


def run(request: ServeRequest) -> None:
    parser = argparse.ArgumentParser(prog="sglang serve")
    parser.add_argument("--model-path", required=True)
    parser.add_argument("--pipeline-parallel", type=int, default=1)
    args, remaining = parser.parse_known_args(request.argv)
    launch_runtime(args, remaining)


def create_backend() -> ServeBackend:
    return ServeBackend(api_version=1, run=run, detect=detect)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin_packages.build_wheel(PLUGIN, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return plugin_packages.install(wheel, tmp_path_factory.mktemp("plugin") / "packages")


@pytest.fixture
def plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The plugin is importable in this process, and forgotten afterwards."""
    monkeypatch.syspath_prepend(installed)
    yield installed
    for name in [name for name in sys.modules if name.startswith("my_sglang_runtime")]:
        del sys.modules[name]


class Example:
    """The example of the guide as the only plugin; `launched` is what its server was given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.launched: list[tuple[argparse.Namespace, list[str]]] = []
        self.supported: set[str] = set()
        names: dict[str, Any] = {
            "supports_model": lambda path: path in self.supported,
            "launch_runtime": lambda args, remaining: self.launched.append((args, remaining)),
        }
        exec(EXAMPLE, names)
        entries = [entry_of("my_runtime", names["create_backend"], PLUGIN)]
        monkeypatch.setattr(serve_backends, "entry_points", lambda group: entries)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Example:
    return Example(monkeypatch)


# ------------------------------------------------------------------ installed and selected


def test_s003_01_the_command_dispatches_to_an_installed_plugin(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "org/model", "--model-type", "my_runtime", "--until", "0"]) == 0
    assert "my_runtime serves org/model on port" in capsys.readouterr().out


def test_s003_02_the_plugin_parses_its_own_options_and_core_cleans_up(
    plugin: Path, capsys: pytest.CaptureFixture[str], killed: list[tuple[int, bool]]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "m", "--model-type", "my_runtime", "--pipeline-parallel", "two"])
    assert end.value.code == 2
    assert "--pipeline-parallel: invalid int value" in capsys.readouterr().err
    assert [include_parent for _, include_parent in killed] == [False]


def test_s003_03_plugin_and_core_share_one_environment_of_python_3_10() -> None:
    assert importlib.metadata.metadata("sglang")["Requires-Python"] == ">=3.10"


def test_s003_04_factory_and_detector_run_without_torch(installed: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from sglang.cli.serve import _create_backend_registry, read_arguments\n"
        f"chosen = _create_backend_registry().auto_detect(read_arguments([{str(tmp_path)!r}])[1])\n"
        "print(chosen.name, [m for m in ('torch', 'transformers') if m in sys.modules])"
    )
    (tmp_path / "my_runtime.json").write_text("{}")
    assert python("-c", code, path=installed) == "my_runtime []\n"


def test_s003_05_the_plugin_interface_is_that_of_any_platform(installed: Path) -> None:
    code = (
        "import sys, sglang.cli.serve_backends as s; print(s.ServeBackend, 'torch' in sys.modules)"
    )
    assert python("-c", code, path=installed).endswith("False\n")


def test_s003_06_only_sglang_owns_the_command(installed: Path, tmp_path: Path) -> None:
    here = [*importlib.metadata.distributions(path=[str(installed)]),
            importlib.metadata.distribution("sglang")]  # fmt: skip
    owners = {
        (entry.name, distribution.name)
        for distribution in here
        for entry in distribution.entry_points
        if entry.group == "console_scripts" and entry.name in ("sglang", "my-runtime")
    }
    assert owners == {("sglang", "sglang"), ("my-runtime", PLUGIN)}
    removable = Path(shutil.copytree(installed, tmp_path / "packages"))
    listing = "import sglang.cli.main as m; m.main(['serve', '--model-type', 'none', 'm'])"
    assert "my_runtime" in stderr_of(listing, removable)
    shutil.rmtree(removable)
    text = stderr_of(listing, removable)
    assert "Available: auto, llm, diffusion." in text and "my_runtime" not in text


def test_s003_07_an_alias_shares_the_implementation(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from my_sglang_runtime import alias, launch  # type: ignore[import-not-found]

    seen: list[Any] = []
    monkeypatch.setattr(launch, "launch_runtime", lambda *given: seen.append(given))
    monkeypatch.setattr(sys, "argv", ["my-runtime", "serve", "org/model", "--tp", "2"])
    assert alias.main() == 0
    assert main(["serve", "org/model", "--model-type", "my_runtime", "--tp", "2"]) == 0
    assert seen[0] == seen[1]
    assert seen[0][0].model_path == "org/model" and seen[0][1] == ["--tp", "2"]


def test_s003_08_the_documented_package_installs_beside_ours(wheel: Path, installed: Path) -> None:
    plan = plugin_packages.what_would_be_installed(wheel)
    assert "Would install 1 package" in plan  # its dependency is satisfied by what is here
    [found] = importlib.metadata.distributions(name=PLUGIN, path=[str(installed)])
    assert (found.name, found.version, found.requires) == (PLUGIN, "0.1.0", ["sglang"])
    [entry] = [e for e in found.entry_points if e.group == SERVE_BACKENDS_GROUP]
    assert (entry.name, entry.value) == ("my_runtime", f"{MODULE}:create_backend")


def test_s003_09_the_entry_point_s_name_is_a_model_type(plugin: Path) -> None:
    registry = serve._create_backend_registry()
    assert registry.available_names == ("llm", "diffusion", "my_runtime")
    assert registry.get("my_runtime").distribution == PLUGIN


@pytest.mark.parametrize("name", ["auto", "llm", "diffusion"])
def test_s003_10_reserved_names_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    entries = [entry_of(name, always(MATCH), "greedy")]
    monkeypatch.setattr(serve_backends, "entry_points", lambda group: entries)
    assert main(["serve", "m"]) == 2
    text = capsys.readouterr().err
    assert f"cannot replace reserved or built-in backends: '{name}' of greedy" in text
    assert "Uninstall the package" in text


def test_s003_11_the_documented_module_runs_verbatim(example: Example) -> None:
    assert main(["serve", "org/model", "--model-type", "my_runtime", "--pipeline-parallel", "2",
                 "--other"]) == 0  # fmt: skip
    [(args, remaining)] = example.launched
    assert (args.model_path, args.pipeline_parallel, remaining) == ("org/model", 2, ["--other"])
    example.supported.add("org/mine")
    assert main(["serve", "org/mine"]) == 0
    assert example.launched[1][0].model_path == "org/mine"


def test_s003_12_without_a_model_the_model_path_is_none() -> None:
    assert serve.read_arguments(["--config", "pipeline.yaml"])[1].model_path is None


# ------------------------------------------------------------------ running


def test_s003_13_core_waits_for_run_and_cleans_up_even_when_it_raises(
    monkeypatch: pytest.MonkeyPatch, killed: list[tuple[int, bool]]
) -> None:
    order: list[object] = []

    def run(request: ServeRequest) -> None:
        order.append(list(killed))
        raise OSError("the server broke")

    registry = ServeBackendRegistry({"llm": ServeBackend(1, run)})
    monkeypatch.setattr(serve, "_create_backend_registry", lambda: registry)
    with pytest.raises(OSError, match="the server broke"):
        serve.serve(argparse.Namespace(), ["m"])
    assert order == [[]]
    assert len(killed) == 1


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_s003_14_help_reaches_run_and_launches_nothing(
    example: Example, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "org/model", "--model-type", "my_runtime", flag])
    assert end.value.code == 0
    assert "--pipeline-parallel" in capsys.readouterr().out
    assert example.launched == []


def test_s003_15_explicit_selection_imports_only_the_selected_provider(
    plugin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = serve_backends.entry_points
    other = SimpleNamespace(name="other", dist=None, load=pytest.fail)
    monkeypatch.setattr(serve_backends, "entry_points", lambda group: [*real(group=group), other])
    assert main(["serve", "m", "--model-type", "my_runtime", "--until", "0"]) == 0
    assert MODULE in sys.modules
    del sys.modules[MODULE]
    with pytest.raises(SystemExit):
        main(["serve", "--model-type", "llm", "--help"])
    assert MODULE not in sys.modules


def test_s003_16_automatic_selection_calls_installed_detectors(
    plugin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "my_runtime.json").write_text("{}")
    assert main(["serve", str(tmp_path), "--until", "0"]) == 0
    assert f"my_runtime serves {tmp_path}" in capsys.readouterr().out


@pytest.mark.parametrize("typed", [["--model-type", "x"], ["--model-type=x"]])
def test_s003_17_model_type_is_removed_before_dispatch(typed: list[str]) -> None:
    model_type, request = serve.read_arguments(["m", *typed, "--port", "1"])
    assert (model_type, request.argv) == ("x", ("--model-path", "m", "--port", "1"))


@pytest.mark.parametrize("model", ["org/model", "./folder", "/models/a b"])
def test_s003_18_a_positional_model_becomes_model_path(model: str) -> None:
    request = serve.read_arguments([model])[1]
    assert request == ServeRequest(("--model-path", model), model, True)


def test_s003_19_the_documented_line_gives_the_documented_argv() -> None:
    line = ["org/model", "--model-type", "my_runtime", "--pipeline-parallel", "2"]
    assert serve.read_arguments(line)[1].argv == (
        "--model-path", "org/model", "--pipeline-parallel", "2",
    )  # fmt: skip


def test_s003_20_backend_help_needs_no_model(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--model-type", "my_runtime", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert "--pipeline-parallel" in text and "--page-size" not in text


def test_s003_21_a_missing_model_is_said(
    example: Example, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model-type", "my_runtime"]) == 2
    text = capsys.readouterr().err
    assert "Error: --model-path is required." in text
    assert "sglang serve MODEL --model-type my_runtime" in text
    assert example.launched == []


def test_s003_22_a_config_only_runtime_needs_no_model(
    plugin: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "pipeline.yaml").write_text("org/from-file\n")
    monkeypatch.chdir(tmp_path)
    line = "serve --model-type my_runtime --config pipeline.yaml --until 0"
    assert main(line.split()) == 0
    assert "my_runtime serves org/from-file" in capsys.readouterr().out


def test_s003_35_the_guide_s_cases_are_all_tested() -> None:
    cases = {
        "Explicit selection": "def test_s003_01_",
        "backend-specific help": "def test_s003_20_",
        "automatic detection": "def test_s003_16_",
        "ambiguous models": "def test_s003_27_",
        "installation and removal": "def test_s003_06_",
    }
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_seed_003*.py"))
    page = (ROOT / "docs/serve-backends.md").read_text()
    assert [case for case, test in cases.items() if case not in page or test not in tests] == []


def test_s003_36_general_help_lists_backends_without_importing_them(
    plugin: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for line in ("  llm         built in\n", "  my_runtime  my-sglang-runtime\n"):
        assert line in text
    assert MODULE not in sys.modules


# ------------------------------------------------------------------ fresh interpreters


def python(*arguments: str, path: Path) -> str:
    return interpreter(*arguments, path=path).stdout


def stderr_of(code: str, path: Path) -> str:
    return interpreter("-c", code, path=path).stderr


def interpreter(*arguments: str, path: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, "PYTHONPATH": str(path)},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
