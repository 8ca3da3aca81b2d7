"""What the scheduler promises holds in both loops: tests run in each unless they name one."""

import pytest

from tests.unit.srt.managers.engine import Engine

LOOPS = ("plain", "overlap")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if hasattr(metafunc.module, "Engine"):
        marker = metafunc.definition.get_closest_marker("loop")
        metafunc.parametrize("loop", marker.args if marker else LOOPS, indirect=True)


@pytest.fixture(autouse=True)
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "overlap", getattr(request, "param", "plain") == "overlap")
