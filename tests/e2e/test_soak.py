"""64 clients with mixed lengths, cancels and disconnects (`make soak` is the long form)."""

from tests.e2e import soak
from tests.e2e.processes import Server


def test_every_answer_is_right_and_every_page_comes_back(server: Server) -> None:
    out = soak.run(server, 300)
    assert out.wrong == []
    assert out.done == 300
    assert out.left > 20
