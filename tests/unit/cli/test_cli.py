"""The command `sglang`."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang.cli import completions
from sglang.cli.main import COMMANDS, main
from sglang.cli.serve import with_model_flag
from sglang.version import __version__


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: sglang" in capsys.readouterr().err
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def test_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["srve"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err
    assert main(["xyzzy"]) == 2
    assert "serve, download" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["version", "--version"])
def test_version(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 0
    assert capsys.readouterr().out == f"sglang {__version__}\n"


def test_positional_model() -> None:
    assert with_model_flag(["demo", "--port", "1"]) == ["--model-path", "demo", "--port", "1"]
    assert with_model_flag(["--port", "1"]) == ["--port", "1"]


def test_config_show_tells_values_and_origins(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_PAGE_SIZE", "16")
    assert main(["config", "show", "demo", "--port", "4000", "--api-key", "s3cret"]) == 0
    text = capsys.readouterr().out
    assert "port = 4000  (flag --port)\n" in text
    assert "page_size = 16  (variable SGLANG_PAGE_SIZE)\n" in text
    assert "stream_interval = 1  (default)\n" in text
    assert "s3cret" not in text and "api_key = (hidden)" in text


def test_config_show_takes_the_line_of_serve(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--model-type", "llm", "demo"]) == 0
    assert "model_path = 'demo'" in capsys.readouterr().out
    assert main(["config", "show", "demo", "--model-type", "diffusion"]) == 2
    assert "--model-type diffusion has options of its own" in capsys.readouterr().err
    assert main(["config", "show", "demo", "--model-type"]) == 2
    assert "needs the name of a serve backend" in capsys.readouterr().err


def test_config_show_needs_no_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show"]) == 0
    assert "port = 30000  (default)" in capsys.readouterr().out
    assert main(["config", "shwo"]) == 2


@pytest.mark.skipif(shutil.which("bash") is None, reason="the script needs bash to run")
def test_bash_completes_commands_and_flags() -> None:
    code = completions.script("bash") + (
        "\nCOMP_WORDS=(sglang ser) COMP_CWORD=1; _sglang; echo ${COMPREPLY[@]}"
        "\nCOMP_WORDS=(sglang serve --page) COMP_CWORD=2; _sglang; echo ${COMPREPLY[@]}"
        "\nCOMP_WORDS=(sglang serve --model-t) COMP_CWORD=2; _sglang; echo ${COMPREPLY[@]}"
        "\nCOMP_WORDS=(sglang serve --model-type d) COMP_CWORD=3; _sglang; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["serve", "--page-size", "--model-type", "diffusion"]


@pytest.mark.parametrize("shell", completions.SHELLS)
def test_completions_know_plugins_but_run_none_of_their_names(
    shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry_points(*, group: str) -> list[SimpleNamespace]:
        names = names_of_plugins if group == "sglang.serve_backends" else []
        return [SimpleNamespace(name=name, dist=None) for name in names]

    monkeypatch.setattr("sglang.cli.serve_backends.entry_points", entry_points)
    names_of_plugins = ["my_runtime", "$(reboot)", "a b", "it's"]
    text = completions.script(shell)
    assert "auto llm diffusion my_runtime" in text
    assert "reboot" not in text and "it's" not in text
    names_of_plugins = ["llm"]  # refused by `sglang serve`
    assert "auto llm diffusion" in completions.script(shell)


@pytest.mark.parametrize("shell", completions.SHELLS)
def test_completions_exist_for(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completions", shell]) == 0
    assert "radix-eviction-policy" in capsys.readouterr().out
    assert main(["completions", "tcsh"]) == 2


def test_download_knows_one_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["download", "other"])
    assert "allowed: demo" in capsys.readouterr().err
    (tmp_path / "file").write_text("mine")
    assert main(["download", "demo", "--to", str(tmp_path)]) == 1
    assert "not the demo model" in capsys.readouterr().err


def test_commands_load_nothing_heavy() -> None:
    code = (
        "import sys, sglang.cli.main as m; m.main(['version']);"
        "print([n for n in ('torch', 'transformers', 'grpc', 'zmq') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
