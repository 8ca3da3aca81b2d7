"""Typed environment variables."""

import re
from pathlib import Path

import pytest

from sglang.srt.environ import EnvVar, envs, parse_bool

PAGE = Path(__file__).resolve().parents[3] / "docs/engine.md"


def test_default_and_value(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN
    monkeypatch.delenv(longer.name, raising=False)
    assert longer.get() is False
    assert not longer.is_set()
    monkeypatch.setenv(longer.name, "1")
    assert longer.get() is True


def test_wrong_text_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    longer = envs.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN
    monkeypatch.setenv(longer.name, "soon")
    with pytest.raises(ValueError, match=f"{longer.name}: expected true or false, got 'soon'"):
        longer.get()


def test_the_page_lists_every_variable() -> None:
    home = str(Path.home())
    known = {v.name: v for v in vars(type(envs)).values() if isinstance(v, EnvVar)}
    rows = re.findall(r"^\| `(SGLANG_\w+)` \| (.*) \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: what for name, _, what in rows} == {n: v.help for n, v in known.items()}
    for name, shown, _ in rows:
        default = known[name].default
        text = str(default).replace(home, "~").lower() if default else ""
        assert shown.strip("`") == ("false" if default is False else text)


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
