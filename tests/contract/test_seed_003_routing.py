"""Statements of the guide for serve backends about routing and wrong registrations."""

from dataclasses import fields, replace
from functools import partial
from typing import Any

import pytest

from sglang.cli import serve, serve_backends
from sglang.cli.main import main
from sglang.cli.serve_backends import (
    ServeBackend,
    ServeBackendDetection,
    ServeBackendRegistry,
    ServeRequest,
)
from tests import plugin_packages
from tests.architecture.budgets import ROOT
from tests.contract.played_backends import MATCH, NO_MATCH, UNKNOWN, always, entry_of

pytestmark = pytest.mark.usefixtures("killed")


def backends(monkeypatch: pytest.MonkeyPatch, **made: ServeBackend) -> list[str]:
    """Installs backends; returns the list to which their names are added when they run."""
    ran: list[str] = []

    def noting(name: str, backend: ServeBackend) -> ServeBackend:
        return replace(backend, run=lambda request: ran.append(name))

    entries = [entry_of(name, partial(noting, name, backend)) for name, backend in made.items()]
    monkeypatch.setattr(serve_backends, "entry_points", lambda group: entries)
    llm = noting("llm", ServeBackend(1, lambda request: None, requires_model_path=False))
    registry = ServeBackendRegistry({"llm": llm})
    monkeypatch.setattr(serve, "_create_backend_registry", lambda: registry)
    return ran


def test_s003_23_a_detector_may_claim_a_config_only_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def detect(request: ServeRequest) -> ServeBackendDetection:
        return MATCH if "--stages" in request.argv else UNKNOWN

    mine = ServeBackend(1, lambda request: None, detect, requires_model_path=False)
    ran = backends(monkeypatch, mine=mine)
    main(["serve", "--config", "f.yaml", "--stages", "2"])
    main(["serve", "--config", "f.yaml"])
    main(["serve", "--config", "f.yaml", "--model-type", "mine"])
    assert ran == ["mine", "llm", "mine"]


def test_s003_24_auto_is_the_default() -> None:
    assert serve.read_arguments(["m"])[0] == "auto"
    assert serve.read_arguments(["m", "--model-type", "auto"]) == serve.read_arguments(["m"])


def test_s003_25_a_backend_without_a_detector_is_explicit_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ran = backends(monkeypatch, mine=ServeBackend(1, lambda request: None))
    main(["serve", "m"])
    main(["serve", "m", "--model-type", "mine"])
    assert ran == ["llm", "mine"]


def test_s003_26_one_match_selects(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = backends(monkeypatch, no=always(NO_MATCH), yes=always(MATCH), unsure=always(UNKNOWN))
    main(["serve", "m"])
    assert ran == ["yes"]


def test_s003_27_several_matches_need_an_explicit_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = backends(monkeypatch, one=always(MATCH), two=always(MATCH))
    assert main(["serve", "m"]) == 2
    text = capsys.readouterr().err
    assert "Multiple serve backends matched m: one, two" in text and "--model-type" in text
    main(["serve", "m", "--model-type", "two"])
    assert ran == ["two"]


def test_s003_28_unknown_and_failures_claim_nothing_and_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran = backends(monkeypatch, unsure=always(UNKNOWN), broken=always(OSError("no file")))
    with caplog.at_level("INFO"):
        main(["serve", "m"])
    assert ran == ["llm"]
    assert "'unsure' cannot tell" in caplog.text
    assert "'broken' failed" in caplog.text and "no file" in caplog.text


def test_s003_29_no_match_falls_back_to_language_models(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = backends(monkeypatch, no=always(NO_MATCH))
    main(["serve", "m"])
    assert ran == ["llm"]


def test_s003_30_installation_order_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = []
    for names in (["a", "b"], ["b", "a"]):
        entries = [entry_of(name, lambda: always(MATCH)) for name in names]
        monkeypatch.setattr(serve_backends, "entry_points", lambda group, e=entries: e)
        with pytest.raises(RuntimeError) as error:
            serve._create_backend_registry().auto_detect(ServeRequest((), "m"))
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_s003_31_a_backend_without_detector_and_model_is_valid() -> None:
    def run(request: ServeRequest) -> None: ...

    backend = ServeBackend(api_version=1, run=run, requires_model_path=False)
    assert backend.detect is None


def test_s003_32_the_api_version_is_a_literal_one() -> None:
    assert serve_backends.SERVE_BACKEND_API_VERSION == 1
    package = plugin_packages.PLUGINS / "my-sglang-runtime/my_sglang_runtime"
    source = (package / "sglang_backend.py").read_text()
    page = (ROOT / "docs/serve-backends.md").read_text()
    assert "api_version=1" in source and "api_version=1" in page
    assert "SERVE_BACKEND_API_VERSION" not in source


@pytest.mark.parametrize(
    ("entries", "text"),
    [
        ([entry_of("x", lambda: ServeBackend(2, print))], "uses API version 2"),
        ([entry_of("x", dict, "one"), entry_of("x", dict, "two")], "several packages: one, two"),
        ([entry_of("auto", dict)], "cannot replace reserved or built-in backends"),
        ([entry_of("x", dict)], "factory returned dict; expected"),
    ],
)
def test_s003_33_a_wrong_registration_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    entries: list[Any], text: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(serve_backends, "entry_points", lambda group: entries)
    assert main(["serve", "m", "--model-type", "x"]) == 2
    assert text in capsys.readouterr().err


def test_s003_34_the_public_contract() -> None:
    assert [f.name for f in fields(ServeRequest)][:2] == ["argv", "model_path"]
    assert [f.name for f in fields(ServeBackend)] == [
        "api_version", "run", "detect", "requires_model_path",
    ]  # fmt: skip
    assert {each.name for each in ServeBackendDetection} == {"MATCH", "NO_MATCH", "UNKNOWN"}


def registered(monkeypatch: pytest.MonkeyPatch, factory: Any) -> ServeBackendRegistry:
    monkeypatch.setattr(serve_backends, "entry_points", lambda group: [entry_of("x", factory)])
    return serve._create_backend_registry()


def test_s000_117_a_factory_of_another_type(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError) as error:
        registered(monkeypatch, dict).get("x")
    assert str(error.value) == (
        "Serve backend 'x' factory returned dict; expected sglang.cli.serve_backends.ServeBackend."
    )


def test_s000_118_another_api_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError) as error:
        registered(monkeypatch, lambda: ServeBackend(7, lambda request: None)).get("x")
    assert str(error.value) == (
        "Serve backend 'x' uses API version 7; this SGLang release requires version 1."
    )


def test_s000_119_the_api_version() -> None:
    assert serve_backends.SERVE_BACKEND_API_VERSION == 1
