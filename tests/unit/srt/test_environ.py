"""Typed environment variables."""

from pathlib import Path

import pytest

from sglang.srt.environ import envs, parse_bool


def test_default_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SGLANG_DRAIN_TIMEOUT", raising=False)
    assert envs.SGLANG_DRAIN_TIMEOUT.get() == 30.0
    assert not envs.SGLANG_DRAIN_TIMEOUT.is_set()
    monkeypatch.setenv("SGLANG_DRAIN_TIMEOUT", "5")
    assert envs.SGLANG_DRAIN_TIMEOUT.get() == 5.0


def test_wrong_text_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_DRAIN_TIMEOUT", "soon")
    with pytest.raises(ValueError, match="SGLANG_DRAIN_TIMEOUT"):
        envs.SGLANG_DRAIN_TIMEOUT.get()


def test_override_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CACHE_DIR", "/before")
    with envs.SGLANG_CACHE_DIR.override(Path("/within")):
        assert envs.SGLANG_CACHE_DIR.get() == Path("/within")
    assert envs.SGLANG_CACHE_DIR.get() == Path("/before")
    monkeypatch.delenv("SGLANG_CACHE_DIR")
    with envs.SGLANG_CACHE_DIR.override(Path("/within")):
        pass
    assert not envs.SGLANG_CACHE_DIR.is_set()


def test_home_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_CACHE_DIR", "~/x")
    assert envs.SGLANG_CACHE_DIR.get() == Path.home() / "x"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("True", True), ("off", False)])
def test_switches(text: str, value: bool) -> None:
    assert parse_bool(text) is value


def test_other_text_is_no_switch() -> None:
    with pytest.raises(ValueError, match="maybe"):
        parse_bool("maybe")
