"""Programs as what they append."""

import pytest

import sglang as sgl
from sglang.lang.ir import SglArgument, SglConstantText, SglFork, SglGen, SglVariable
from sglang.lang.tracer import StopTracing, TracerProgramState, TracingScope
from tests.unit.lang.fake_backend import FakeBackend


def kinds(state: TracerProgramState) -> list[str]:
    return [type(node).__name__ for node in state.nodes]


def test_a_trace_has_texts_arguments_and_answers() -> None:
    @sgl.function
    def program(s, topic, times=2):
        s += sgl.user("About " + topic)
        for _ in range(times):
            s += sgl.gen("x") + "; "
        s += "You said " + s["x"]

    state = program.trace()
    assert kinds(state) == [
        "SglRoleBegin", "SglConstantText", "SglArgument", "SglRoleEnd",
        "SglGen", "SglConstantText", "SglGen", "SglConstantText",
        "SglConstantText", "SglVariable",
    ]  # fmt: skip
    assert isinstance(state["x"], SglVariable)
    assert kinds(program.trace(topic="bees", times=1))[:3] == [
        "SglRoleBegin", "SglConstantText", "SglRoleEnd",
    ]  # fmt: skip
    with pytest.raises(KeyError, match="no variable 'y'"):
        _ = state["y"]


def test_forks_are_traced_with_their_branches() -> None:
    @sgl.function
    def program(s):
        s += "a"
        forks = s.fork(2)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks[0] += "!"
        forks.join()
        s += "then " + s["x"]
        with s.copy() as c, s.var_scope("v"):
            c += "c"
            s += "v"
        s += sgl.user(s["v"])

    state = program.trace(backend=FakeBackend())
    fork = state.nodes[1]
    assert isinstance(fork, SglFork)
    assert [kinds(branch) for branch in fork.branches] == [
        ["SglConstantText", "SglGen", "SglConstantText"], ["SglConstantText", "SglGen"],
    ]  # fmt: skip
    assert "v" in state


def test_a_program_called_while_tracing_is_traced() -> None:
    @sgl.function
    def inner(s, word):
        s += word + sgl.gen("y")

    @sgl.function
    def outer(s):
        s += "a"
        s["inner"] = (made := inner("word"))
        return made

    traced = outer.trace().ret_value
    assert isinstance(traced, TracerProgramState)
    first, second = traced.nodes
    assert isinstance(first, SglConstantText) and first.value == "word"
    assert isinstance(second, SglGen)
    assert TracingScope.current() is None


def test_what_only_a_run_can_tell_stops_the_trace() -> None:
    @sgl.function
    def program(s):
        s += sgl.gen("x")
        return s.text()

    with pytest.raises(StopTracing, match="text"):
        program.trace()
    with pytest.raises(TypeError, match="cannot be traced"):
        format(SglArgument("topic"), "")
    with pytest.raises(TypeError, match="cannot be traced"):
        str(SglArgument("topic"))


def test_the_beginning_ends_before_an_argument_in_an_f_string() -> None:
    @sgl.function
    def program(s, topic):
        s += "fixed " * 20
        s += f"about {topic}"

    backend = FakeBackend()
    program.cache(backend)
    assert backend.called("cache_prefix") == ["fixed " * 20]
