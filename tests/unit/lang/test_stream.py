"""Text as it comes."""

import threading
from typing import Any

import pytest

import sglang as sgl
from tests.unit.lang.fake_backend import GUARD, FakeBackend, failing


@sgl.function
def greet(s):
    s += "Say: " + sgl.gen("hello") + "; " + sgl.gen("more")


def start(backend=None, program=greet, **options):
    return program.run(backend=backend or FakeBackend(), stream=True, **options)


def test_the_pieces_are_the_text() -> None:
    pieces = list(start().text_iter())
    assert "".join(pieces) == "Say: answer; answer"


def test_a_variable_streams_piece_by_piece() -> None:
    backend = FakeBackend()
    backend.gate = threading.Event()
    state = start(backend)
    seen: list[str] = []
    thread = threading.Thread(target=lambda: seen.extend(state.text_iter("more")))
    thread.start()  # reads before the model has begun
    backend.gate.set()
    thread.join(GUARD)
    assert "".join(seen) == "answer"
    assert state["more"] == "answer"


def test_several_can_read_the_same_stream() -> None:
    state = start()
    assert list(state.text_iter("hello"))
    assert "".join(state.text_iter("hello")) == "answer"
    assert "".join(state.text_iter()) == "Say: answer; answer"


def test_what_does_not_stream_comes_whole() -> None:
    state = greet.run(backend=FakeBackend())
    assert list(state.text_iter()) == ["Say: answer; answer"]
    assert list(state.text_iter("hello")) == ["answer"]


def test_a_stream_that_breaks_off_raises() -> None:
    class Breaking(FakeBackend):
        def generate_stream(self, s, sampling_params):
            yield "he", {}
            raise RuntimeError("line cut")

    state = start(Breaking())
    for name, whole in ((None, "Say: he"), ("hello", "he")):
        seen = []
        with pytest.raises(RuntimeError, match="line cut"):
            for piece in state.text_iter(name):
                seen.append(piece)
        assert "".join(seen) == whole
    with pytest.raises(RuntimeError, match="line cut"):
        list(state.text_iter("more"))
    with pytest.raises(RuntimeError, match="no model"):
        list(greet.run(backend=FakeBackend(failing("no model"))).text_iter())


def test_an_error_of_the_function_ends_the_stream() -> None:
    @sgl.function
    def program(s):
        s += "begun"
        s.sync()
        raise ValueError("mine")

    seen = []
    with pytest.raises(ValueError, match="mine"):
        seen.extend(start(program=program).text_iter())
    with pytest.raises(ValueError, match="mine"):
        list(start(program=program).text_iter("never"))


def test_a_variable_that_never_comes_is_a_missing_key() -> None:
    with pytest.raises(KeyError, match="never"):
        list(start().text_iter("never"))


async def test_streams_can_be_read_by_asyncio() -> None:
    pieces = [piece async for piece in start().text_async_iter()]
    assert "".join(pieces) == "Say: answer; answer"


async def test_pieces_come_with_meta_information() -> None:
    pairs = [pair async for pair in start().text_async_iter("hello", return_meta_data=True)]
    assert "".join(piece for piece, _ in pairs) == "answer"
    assert pairs[-1][1] == {"count": 6}
    with pytest.raises(ValueError, match="needs var_name"):
        _ = [p async for p in start().text_async_iter(return_meta_data=True)]


def test_several_answers_and_reasoning_come_whole() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("a", n=2) + sgl.separate_reasoning(sgl.gen("b"))

    def answer(prompt: str) -> Any:
        return "<think>t</think>b" if prompt else ["one", "two"]

    state = start(FakeBackend(answer), program)
    assert "".join(state.text_iter()) == "oneb"
    assert list(state.text_iter("a")) == ["one"]
    assert state["b_reasoning_content"] == "t"


def test_without_a_thread_the_stream_is_over_when_run_returns() -> None:
    state = start(use_thread=False)
    assert list(state.text_iter()) == ["Say: answer; answer"]
    assert list(state.text_iter("more")) == ["answer"]


def test_branches_stream_too() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        s["pieces"] = ["".join(fork.text_iter("x")) for fork in forks]
        forks.join()

    state = start(program=program)
    list(state.text_iter())
    assert state["pieces"] == ["answer", "answer"]
