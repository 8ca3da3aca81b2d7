"""Failures reach whoever reads; nobody waits for what will not come."""

import pytest

import sglang as sgl
from tests.unit.lang.fake_backend import FakeBackend, failing


@sgl.function
def two_answers(s):
    s += "start " + sgl.gen("first")
    s += " then " + sgl.gen("second")
    s += " end"


def test_reading_what_failed_raises_the_error() -> None:
    state = two_answers.run(backend=FakeBackend(failing("no model")))
    state.sync()  # does not raise
    assert str(state.error()) == "no model"
    for name in ("first", "second"):
        with pytest.raises(RuntimeError, match="no model"):
            _ = state[name]
        with pytest.raises(RuntimeError, match="no model"):
            state.get_meta_info(name)
    assert state.text() == "start "


def test_what_came_before_the_failure_is_kept() -> None:
    def answer(prompt: str) -> str:
        if "then" in prompt:
            raise RuntimeError("broke later")
        return "fine"

    backend = FakeBackend(answer)
    state = two_answers.run(backend=backend)
    assert state["first"] == "fine"
    with pytest.raises(RuntimeError, match="broke later"):
        _ = state["second"]
    assert state.text() == "start fine then "
    assert len(backend.called("generate")) == 2


def test_a_variable_that_failed_the_second_time_is_not_the_old_one() -> None:
    answers = iter(["old"])

    @sgl.function
    def program(s):
        s += sgl.gen("x")
        assert s["x"] == "old"
        s += sgl.gen("x")

    state = program.run(backend=FakeBackend(lambda prompt: next(answers)))
    with pytest.raises(StopIteration):
        _ = state["x"]


def test_an_appended_answer_after_the_failure_fails_too() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        s.sync()
        s += sgl.gen("y")

    state = program.run(backend=FakeBackend(failing("gone")))
    with pytest.raises(RuntimeError, match="gone"):
        _ = state["y"]


def test_a_failed_state_does_not_fork() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        s.fork(2)

    with pytest.raises(RuntimeError, match="gone"):
        program.run(backend=FakeBackend(failing("gone")))


def test_an_error_of_the_function_ends_the_program() -> None:
    kept = []

    @sgl.function
    def program(s):
        kept.append(s)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        program.run(backend=FakeBackend())
    assert str(kept[0].error()) == "mine"
    assert kept[0].stream_executor.results.finished


def test_a_failing_end_is_an_error_of_the_program() -> None:
    class Stubborn(FakeBackend):
        def end_program(self, s) -> None:
            raise RuntimeError("cannot end")

    state = two_answers.run(backend=Stubborn())
    assert str(state.error()) == "cannot end"
    assert state["second"] == "answer"


def test_without_a_thread_the_failure_is_raised_where_it_happens() -> None:
    @sgl.function
    def program(s):
        with pytest.raises(RuntimeError, match="gone"):
            s += sgl.gen("x")
        with pytest.raises(RuntimeError, match="gone"):
            s += "more"

    state = program.run(backend=FakeBackend(failing("gone")), use_thread=False)
    assert str(state.error()) == "gone"


def test_nothing_is_added_to_a_program_that_has_ended() -> None:
    state = two_answers.run(backend=FakeBackend())
    with pytest.raises(RuntimeError, match="has ended"):
        state += "more"


def test_backends_say_what_they_do_not_have() -> None:
    from sglang.lang.backend.base_backend import BaseBackend

    @sgl.function
    def program(s):
        s += sgl.gen("x")

    state = program.run(backend=BaseBackend())
    assert isinstance(state.error(), NotImplementedError)
    with pytest.raises(NotImplementedError, match="BaseBackend has no cache to flush"):
        sgl.flush_cache(BaseBackend())
