"""Fixtures of the wheel's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sglang_router.stage import Stage
from tests.unit.sglang_router.stage import stage as open_stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    yield from open_stage(tmp_path)
