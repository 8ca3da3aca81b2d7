"""Entry points are found without importing them, in one order, and fail as values."""

import importlib.metadata
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sglang.extension.entry_points import LoadError, find_entry_points, load_entry_point

GROUP = "sglang.tests.entry_points"
Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts metadata of a distribution with these entry points on the path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def put(distribution: str, **entries: str) -> Path:
        info = tmp_path / f"{distribution}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1\n")
        lines = [f"[{GROUP}]", *(f"{name} = {value}" for name, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        return tmp_path

    return put


def test_nothing_installed_is_nothing_found() -> None:
    assert find_entry_points(GROUP) == []


def test_they_are_found_by_name_then_distribution(install: Install) -> None:
    install("zoo", b="one:x", a="two:x")
    install("bar", a="three:x")
    found = find_entry_points(GROUP)
    assert [(each.name, each.distribution) for each in found] == [
        ("a", "bar"), ("a", "zoo"), ("b", "zoo"),
    ]  # fmt: skip
    assert {each.group for each in found} == {GROUP}


def test_finding_imports_nothing(install: Install) -> None:
    folder = install("zoo", a="zoo_of_this_test:x")
    (folder / "zoo_of_this_test.py").write_text("x = 1")
    (found,) = find_entry_points(GROUP)
    assert "zoo_of_this_test" not in sys.modules
    assert load_entry_point(found) == 1
    assert sys.modules.pop("zoo_of_this_test")


def test_a_failed_import_is_a_value_that_names_both(install: Install) -> None:
    install("zoo", a="there_is_no_such_module:x")
    (found,) = find_entry_points(GROUP)
    failure = load_entry_point(found)
    assert isinstance(failure, LoadError)
    assert isinstance(failure.error, ModuleNotFoundError)
    assert str(failure).startswith("'a' of zoo cannot be loaded: ModuleNotFoundError: ")


def test_the_source_can_be_another_one() -> None:
    entry = importlib.metadata.EntryPoint("a", "os:sep", "ignored")
    (found,) = find_entry_points("any", lambda group: [entry])
    assert (found.name, found.group, found.distribution) == ("a", "any", None)
    assert str(found) == "'a' of an unnamed distribution"
