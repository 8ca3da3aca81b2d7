"""Generated pages are current."""

import pytest

from tests.architecture.budgets import ROOT
from tests.architecture.generated import PAGES


@pytest.mark.parametrize("name", PAGES)
def test_page_is_current(name: str) -> None:
    assert (ROOT / name).read_text() == PAGES[name](), "run `make fix`"
