"""The registry of serve backends."""

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.cli.serve_backends import (
    SERVE_BACKENDS_GROUP,
    RegisteredServeBackend,
    ServeBackend,
    ServeBackendDetection,
    ServeBackendError,
    ServeBackendRegistry,
    ServeRequest,
)

REQUEST = ServeRequest(("--model-path", "org/model"), "org/model")
LLM = ServeBackend(1, lambda request: 0)


class Entry:
    """An entry point that counts how often its provider is imported."""

    def __init__(self, name: str, factory: Any, distribution: str | None = "dist") -> None:
        self.name = name
        self.dist = None if distribution is None else SimpleNamespace(name=distribution)
        self.num_loads = 0
        self._factory = factory

    def load(self) -> Any:
        self.num_loads += 1
        if isinstance(self._factory, Exception):
            raise self._factory
        return self._factory


def backend(answer: Any = None, version: int = 1) -> Callable[[], ServeBackend]:
    def detect(request: ServeRequest) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    made = ServeBackend(version, lambda request: None, None if answer is None else detect)
    return lambda: made


Install = Callable[..., ServeBackendRegistry]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """A registry with `llm` built in and the given entry points installed."""

    def make(*entries: Entry, **builtins: ServeBackend) -> ServeBackendRegistry:
        def entry_points(*, group: str) -> list[Entry]:
            return list(entries) if group == SERVE_BACKENDS_GROUP else []

        monkeypatch.setattr("sglang.cli.serve_backends.entry_points", entry_points)
        return ServeBackendRegistry({"llm": LLM, **builtins})

    return make


def test_names_are_builtins_then_plugins_and_nothing_is_imported(install: Install) -> None:
    entries = Entry("zebra", backend()), Entry("ant", backend(), "ants")
    registry = install(*entries)
    assert registry.available_names == ("llm", "ant", "zebra")
    assert registry.distributions_of("ant") == ("ants",)
    assert registry.distributions_of("llm") == ()
    assert [entry.num_loads for entry in entries] == [0, 0]


def test_selection_imports_one_provider_once(install: Install) -> None:
    wanted, other = Entry("mine", backend(), "mine-dist"), Entry("other", backend())
    registry = install(wanted, other)
    first = registry.get("mine")
    assert first == RegisteredServeBackend("mine", first.backend, "mine-dist")
    assert registry.get("mine") is first
    assert (wanted.num_loads, other.num_loads) == (1, 0)


def test_builtin_has_no_distribution(install: Install) -> None:
    assert install().get("llm") == RegisteredServeBackend("llm", LLM, None)


@pytest.mark.parametrize("name", ["auto", "llm"])
def test_plugin_cannot_take_a_reserved_or_builtin_name(install: Install, name: str) -> None:
    with pytest.raises(RuntimeError, match="cannot replace reserved or built-in backends") as error:
        install(Entry(name, backend(), "greedy"))
    assert f"'{name}' of greedy" in str(error.value)


def test_builtin_cannot_be_called_auto(install: Install) -> None:
    with pytest.raises(ValueError, match="auto is reserved"):
        install(auto=LLM)


def test_unknown_name_lists_what_there_is(install: Install) -> None:
    registry = install(Entry("my_runtime", backend()))
    with pytest.raises(ValueError, match="did you mean 'my_runtime'") as error:
        registry.get("my_runtme")
    assert "Available: auto, llm, my_runtime." in str(error.value)
    with pytest.raises(ValueError, match="'xyzzy'; Available:"):
        registry.get("xyzzy")


def test_two_distributions_clash_only_when_selected(install: Install) -> None:
    registry = install(Entry("mine", backend(), "one"), Entry("mine", backend(), "two"))
    assert registry.available_names == ("llm", "mine")
    assert registry.get("llm").backend is LLM
    with pytest.raises(RuntimeError, match="several packages: one, two"):
        registry.get("mine")


def fail() -> ServeBackend:
    raise OSError("no driver")


@pytest.mark.parametrize(
    ("factory", "kind", "text"),
    [
        (ImportError("no torch2"), RuntimeError,
         "Failed to load serve backend 'mine' of dist: ImportError: no torch2"),
        (fail, RuntimeError, "Failed to load serve backend 'mine' of dist: OSError: no driver"),
        ("text", RuntimeError, "'str' object is not callable"),
        (dict, TypeError, "Serve backend 'mine' factory returned dict; "
         "expected sglang.cli.serve_backends.ServeBackend."),
        (backend(version=2), RuntimeError, "Serve backend 'mine' uses API version 2; "
         "this SGLang release requires version 1."),
    ],
)  # fmt: skip
def test_a_provider_that_breaks_the_contract_is_named(
    install: Install, factory: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind) as error:
        install(Entry("mine", factory)).get("mine")
    assert text in str(error.value)
    assert isinstance(error.value, ServeBackendError)


MATCH, NO_MATCH = ServeBackendDetection.MATCH, ServeBackendDetection.NO_MATCH
UNKNOWN = ServeBackendDetection.UNKNOWN


@pytest.mark.parametrize(
    ("answers", "chosen"),
    [
        ({"a": MATCH}, "a"),
        ({"a": NO_MATCH, "b": MATCH}, "b"),
        ({"a": "match"}, "a"),
        ({"a": NO_MATCH}, "llm"),
        ({"a": UNKNOWN}, "llm"),
        ({"a": None}, "llm"),
        ({"a": RuntimeError("x"), "b": MATCH}, "b"),
        ({"a": True}, "llm"),
        ({}, "llm"),
    ],
)
def test_automatic_choice(install: Install, answers: dict[str, Any], chosen: str) -> None:
    entries = [Entry(name, backend(answer)) for name, answer in answers.items()]
    assert install(*entries).auto_detect(REQUEST).name == chosen
    assert [entry.num_loads for entry in entries] == [1] * len(entries)


def test_several_matches_ask_for_a_choice_in_any_order(install: Install) -> None:
    entries = [Entry("b", backend(MATCH), "bs"), Entry("a", backend(MATCH), "as")]
    for order in (entries, entries[::-1]):
        with pytest.raises(RuntimeError, match="Multiple serve backends matched") as error:
            install(*order).auto_detect(REQUEST)
        assert "org/model: a, b. Select one with --model-type" in str(error.value)


def test_builtin_detectors_take_part(install: Install) -> None:
    image = backend(MATCH)()
    assert install(image=image).auto_detect(REQUEST).backend is image
    with pytest.raises(RuntimeError, match="a, image|image, a"):
        install(Entry("a", backend(MATCH)), image=image).auto_detect(REQUEST)


def test_what_claims_nothing_is_logged(install: Install, caplog: pytest.LogCaptureFixture) -> None:
    registry = install(
        Entry("broken", ImportError("no torch2")),
        Entry("raises", backend(KeyError("lost"))),
        Entry("twice", backend(MATCH), "one"),
        Entry("twice", backend(MATCH), "two"),
        Entry("unsure", backend(UNKNOWN)),
    )
    with caplog.at_level(logging.INFO):
        assert registry.auto_detect(REQUEST).name == "llm"
    for part in ("no torch2", "'raises' failed", "one, two", "'unsure' cannot tell"):
        assert part in caplog.text
