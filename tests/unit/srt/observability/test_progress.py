"""Progress on a terminal and in a log."""

import io
import logging

import pytest

from sglang.srt.observability.progress import ProgressLine, describe


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_terminal_line_is_redrawn_and_closed() -> None:
    out, clock = Terminal(), Clock()
    line = ProgressLine(out, clock)
    line.update("loading weights", 0, 100_000_000)
    clock.now = 0.05
    line.update("loading weights", 1_000_000, 100_000_000)
    clock.now = 2.0
    line.update("loading weights", 50_000_000, 100_000_000)
    line.close()
    text = out.getvalue()
    assert text.count("\r") == 2  # the second one came too soon
    assert "50.0/100.0 MB, 2 s left" in text
    assert text.endswith("\n")


def test_the_end_is_always_shown_and_only_once() -> None:
    out, clock = Terminal(), Clock()
    line = ProgressLine(out, clock)
    line.update("x", 0, 10)
    line.update("x", 10, 10)
    line.update("x", 10, 10)
    assert out.getvalue().count("\r") == 2


def test_a_new_phase_starts_a_new_line() -> None:
    out = Terminal()
    line = ProgressLine(out, Clock())
    line.update("one")
    line.update("two")
    assert "one\n" in out.getvalue()


def test_logs_where_there_is_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    out, clock = io.StringIO(), Clock()
    line = ProgressLine(out, clock)
    with caplog.at_level(logging.INFO):
        for clock.now in (0.0, 1.0, 4.9, 5.0, 6.0):
            line.update("loading", int(clock.now), 100)
    assert out.getvalue() == ""
    assert len(caplog.records) == 2


def test_unknown_size_is_the_phase_alone() -> None:
    assert describe("warming up", 0, 0, 5.0) == "warming up"
