"""`sglang serve`: reading the line, selecting a backend, cleaning up."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang.cli import builtin_backends, serve
from sglang.cli.main import main
from sglang.cli.serve_backends import (
    ServeBackend,
    ServeBackendDetection,
    ServeBackendRegistry,
    ServeRequest,
)

ARGS = SimpleNamespace()


@pytest.mark.parametrize(
    ("argv", "model_type", "request_argv", "model", "positional"),
    [
        (["demo"], "auto", ("--model-path", "demo"), "demo", True),
        (["org/m", "--model-type", "x", "--pp", "2"], "x",
         ("--model-path", "org/m", "--pp", "2"), "org/m", True),
        (["--model-type=x", "org/m"], "x", ("--model-path", "org/m"), "org/m", True),
        (["--model-type", "x", "--config", "f"], "x", ("--config", "f"), None, False),
        (["--port", "1", "--model", "m"], "auto", ("--port", "1", "--model", "m"), "m", False),
        (["--model-path=m"], "auto", ("--model-path=m",), "m", False),
        (["a", "--model-path", "b"], "auto", ("--model-path", "a", "--model-path", "b"), "b", True),
        (["--model-type", "x", "--model-type=y"], "y", (), None, False),
        (["--model-path"], "auto", ("--model-path",), None, False),
        ([], "auto", (), None, False),
    ],
)  # fmt: skip
def test_reading_the_line(
    argv: list[str],
    model_type: str,
    request_argv: tuple[str, ...],
    model: str | None,
    positional: bool,
) -> None:
    request = ServeRequest(request_argv, model, positional)
    assert serve.read_arguments(argv) == (model_type, request)


@pytest.mark.parametrize(
    "argv", [["--model-type"], ["m", "--model-type="], ["--model-type", "--port"]]
)
def test_model_type_needs_a_value(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="--model-type needs the name of a serve backend"):
        serve.serve(ARGS, argv)
    assert main(["serve", *argv]) == 2
    assert "sglang serve: --model-type needs" in capsys.readouterr().err


class Stage:
    """A registry with played backends; `events` is what happened, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[object] = []
        self.code: int | None = None
        self.error: BaseException | None = None
        self.during: Callable[[], object] = lambda: None
        registry = ServeBackendRegistry(
            {
                "llm": ServeBackend(1, self.run_as("llm"), requires_model_path=False),
                "mine": ServeBackend(1, self.run_as("mine"), self.detect),
                "by_config": ServeBackend(1, self.run_as("by_config"), requires_model_path=False),
            }
        )
        monkeypatch.setattr("sglang.cli.serve._create_backend_registry", lambda: registry)
        monkeypatch.setattr("sglang.srt.plugins.load_plugins", lambda: self.see("plugins"))
        monkeypatch.setattr("sglang.cli.serve.kill_process_tree", self.kill)

    def see(self, event: object) -> None:
        self.events.append(event)

    def kill(self, pid: int, include_parent: bool = True) -> None:
        self.see(("clean up", pid, include_parent))

    def detect(self, request: ServeRequest) -> ServeBackendDetection:
        is_mine = request.model_path == "mine/model"
        return ServeBackendDetection.MATCH if is_mine else ServeBackendDetection.NO_MATCH

    def run_as(self, name: str) -> Callable[[ServeRequest], int | None]:
        def run(request: ServeRequest) -> int | None:
            self.see((name, request.argv))
            self.during()
            if self.error is not None:
                raise self.error
            return self.code

        return run


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    return Stage(monkeypatch)


CLEANED_UP = ("clean up", os.getpid(), False)


def test_plugins_load_then_the_backend_runs_then_children_end(stage: Stage) -> None:
    assert serve.serve(ARGS, ["m", "--model-type", "mine", "--x"]) == 0
    assert stage.events == ["plugins", ("mine", ("--model-path", "m", "--x")), CLEANED_UP]


@pytest.mark.parametrize(("model", "backend"), [("mine/model", "mine"), ("demo", "llm")])
def test_auto_is_the_default(stage: Stage, model: str, backend: str) -> None:
    serve.serve(ARGS, [model])
    assert stage.events[1] == (backend, ("--model-path", model))


def test_the_exit_code_is_the_backend_s(stage: Stage) -> None:
    stage.code = 7
    assert main(["serve", "m"]) == 7


@pytest.mark.parametrize("error", [OSError("lost"), SystemExit(3), KeyboardInterrupt()])
def test_children_end_when_the_backend_raises(stage: Stage, error: BaseException) -> None:
    stage.error = error
    with pytest.raises(type(error)):
        serve.serve(ARGS, ["m"])
    assert stage.events[-1] == CLEANED_UP


def test_ctrl_c_is_an_exit_code_and_a_backend_s_own_error_is_not_hidden(stage: Stage) -> None:
    stage.error = KeyboardInterrupt()
    assert main(["serve", "m"]) == 130
    stage.error = ValueError("its own")
    with pytest.raises(ValueError, match="its own"):
        main(["serve", "m"])


def test_sigterm_ends_the_backend_and_its_children(stage: Stage) -> None:
    stage.during = lambda: signal.raise_signal(signal.SIGTERM)
    with pytest.raises(SystemExit) as end:
        serve.serve(ARGS, ["m"])
    assert end.value.code == 143
    assert stage.events[-1] == CLEANED_UP
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_second_sigterm_does_not_interrupt_the_cleaning_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def kill(pid: int, include_parent: bool = True) -> None:
        signal.raise_signal(signal.SIGTERM)
        stage.kill(pid, include_parent)

    monkeypatch.setattr("sglang.cli.serve.kill_process_tree", kill)
    assert serve.serve(ARGS, ["m"]) == 0
    assert stage.events[-1] == CLEANED_UP


def test_serving_beside_the_main_thread_sets_no_signal_handler(stage: Stage) -> None:
    thread = threading.Thread(target=serve.serve, args=(ARGS, ["m"]))
    thread.start()
    thread.join(60)
    assert stage.events[-1] == CLEANED_UP


def test_a_handler_of_the_caller_stays(stage: Stage) -> None:
    def own(number: int, frame: object) -> None:
        raise AssertionError("not sent")

    before = signal.signal(signal.SIGTERM, own)
    try:
        serve.serve(ARGS, ["m"])
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_missing_model(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.serve(ARGS, ["--model-type", "mine", "--port", "1"]) == 2
    assert "Error: --model-path is required." in capsys.readouterr().err
    assert stage.events == ["plugins", CLEANED_UP]


def test_a_backend_may_do_without_a_model(stage: Stage) -> None:
    assert serve.serve(ARGS, ["--model-type", "by_config", "--config", "f.yaml"]) == 0
    assert ("by_config", ("--config", "f.yaml")) in stage.events


def test_unknown_backend_is_one_sentence(stage: Stage, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m", "--model-type", "mnie"]) == 2
    text = capsys.readouterr().err
    assert text.startswith("sglang serve: Unknown serve backend 'mnie'; did you mean 'mine'?")
    assert text.count("\n") == 1
    assert stage.events[-1] == CLEANED_UP


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_of_a_backend_loads_no_plugins_and_needs_no_model(stage: Stage, flag: str) -> None:
    assert serve.serve(ARGS, ["--model-type", "mine", flag]) == 0
    assert stage.events == [("mine", (flag,))]


def test_help_beside_a_model_is_that_of_its_backend(stage: Stage) -> None:
    serve.serve(ARGS, ["mine/model", "--help"])
    assert stage.events == [("mine", ("--model-path", "mine/model", "--help"))]


def test_general_help_lists_backends_then_the_options_of_llm(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    assert serve.serve(ARGS, ["--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: sglang serve MODEL [--model-type BACKEND]" in text
    assert "  mine       built in\n" in text
    assert stage.events == [("llm", ("--help",))]


# ------------------------------------------------------------------ built-in backends


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    index = '{"_class_name": "FluxPipeline", "_diffusers_version": "0.35.0"}'
    (tmp_path / "model_index.json").write_text(index)
    return tmp_path


def request_of(model: str | Path | None, *more: str) -> ServeRequest:
    return ServeRequest(more, None if model is None else str(model))


def test_a_diffusion_pipeline_is_recognised(pipeline: Path) -> None:
    detect = builtin_backends.detect_diffusion
    assert detect(request_of(pipeline)) is ServeBackendDetection.MATCH
    (pipeline / "model_index.json").write_text("{")
    assert detect(request_of(pipeline)) is ServeBackendDetection.NO_MATCH
    assert detect(request_of(pipeline / "model_index.json")) is ServeBackendDetection.NO_MATCH
    assert detect(request_of("org/model")) is ServeBackendDetection.UNKNOWN
    assert detect(request_of(None)) is ServeBackendDetection.UNKNOWN


def test_a_diffusion_pipeline_is_refused_in_one_sentence(
    pipeline: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sglang.cli.serve.kill_process_tree", lambda *args, **more: None)
    assert main(["serve", str(pipeline)]) == 1
    text = capsys.readouterr().err
    for part in ("serves language models", "'FluxPipeline'", "--model-type NAME",
                 "'sglang.serve_backends'"):  # fmt: skip
        assert part in text
    assert text.count("\n") == 1


@pytest.mark.parametrize(
    ("index", "part"),
    [
        ('{"_diffusers_version": "0.35.0"}', "pipeline of diffusers 0.35.0"),
        ("{", "no local folder"),
    ],
)
def test_the_refusal_says_what_was_found(
    pipeline: Path, capsys: pytest.CaptureFixture[str], index: str, part: str
) -> None:
    (pipeline / "model_index.json").write_text(index)
    assert builtin_backends.refuse_diffusion(request_of(pipeline)) == 1
    assert part in capsys.readouterr().err


def test_help_of_diffusion(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--model-type", "diffusion", "--help"]) == 0
    assert "model_index.json" in capsys.readouterr().out


def test_help_of_llm_shows_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["serve", "--model-type", "llm", "--help"])
    assert end.value.code == 0
    assert "--page-size" in capsys.readouterr().out
