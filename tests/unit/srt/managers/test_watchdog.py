"""The timer is set while there is work, not at each step, and never while there is none."""

import faulthandler

import pytest

from sglang.srt.managers.watchdog import Watchdog


class Timer:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.events: list[object] = []
        monkeypatch.setattr(
            faulthandler, "dump_traceback_later", lambda seconds, exit: self.events.append(seconds)
        )
        monkeypatch.setattr(
            faulthandler, "cancel_dump_traceback_later", lambda: self.events.append("cancel")
        )


@pytest.fixture
def timer(monkeypatch: pytest.MonkeyPatch) -> Timer:
    return Timer(monkeypatch)


def test_no_step_has_less_than_the_timeout(timer: Timer) -> None:
    watchdog = Watchdog(60.0, lambda: timer.now)
    fires_at = 0.0
    for _ in range(50):
        timer.events.clear()
        watchdog.step_begins()
        if timer.events:
            fires_at = timer.now + float(str(timer.events[0]))
        assert 60.0 <= fires_at - timer.now <= 66.0 + 1e-9
        timer.now += 1.7


def test_many_short_steps_set_it_once(timer: Timer) -> None:
    watchdog = Watchdog(60.0, lambda: timer.now)
    for _ in range(100):
        watchdog.step_begins()
    assert timer.events == [pytest.approx(66.0)]


def test_rest_takes_it_away_and_the_next_step_sets_it(timer: Timer) -> None:
    watchdog = Watchdog(60.0, lambda: timer.now)
    watchdog.rest()
    watchdog.step_begins()
    watchdog.rest()
    watchdog.rest()
    watchdog.step_begins()
    assert timer.events == [pytest.approx(66.0), "cancel", pytest.approx(66.0)]
