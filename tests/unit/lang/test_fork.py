"""Forks: the literal idiom, the order of calls, isolation and joins."""

import inspect
import threading

import pytest

import sglang as sgl
from sglang.lang.executor import StreamExecutor
from sglang.lang.ir import SglVarScopeEnd
from tests.unit.lang.fake_backend import FakeBackend, failing


def run(func, backend=None, **options):
    return sgl.function(func).run(backend=backend or FakeBackend(), **options)


@sgl.function
def tips(s, fork_size, max_tokens):
    s += "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"
    # Generate detailed tips
    forks = s.fork(fork_size)
    for i in range(fork_size):
        forks[i] += f"Now, I expand tip {i + 1} into a detailed paragraph:\nTip {i + 1}:"
        forks[i] += sgl.gen("detailed_tip", max_tokens, stop=["\n\n"])
    forks.join()

    # Concatenate tips and summarize
    s += "Here are these tips with detailed explanation:\n"
    for i in range(fork_size):
        s += f"Tip {i + 1}:" + forks[i]["detailed_tip"] + "\n"

    s += "\nIn summary," + sgl.gen("summary", max_tokens=512)  # fmt: skip


PREFIX = "Here are two tips for staying healthy: 1. Balanced Diet. 2. Regular Exercise.\n\n"


def test_the_idiom_runs() -> None:
    backend = FakeBackend(lambda prompt: f" <{len(prompt)}>")
    state = tips.run(2, 64, backend=backend)
    branch = "Now, I expand tip {0} into a detailed paragraph:\nTip {0}:"
    prompts = [PREFIX + branch.format(number) for number in (1, 2)]
    answers = [f" <{len(prompt)}>" for prompt in prompts]
    summary = (
        PREFIX + "Here are these tips with detailed explanation:\n"
        f"Tip 1:{answers[0]}\nTip 2:{answers[1]}\n\nIn summary,"
    )
    assert state.text() == summary + f" <{len(summary)}>"
    assert state["detailed_tip"] == answers
    assert sorted(backend.called("generate")[:2]) == prompts  # each asks with the whole text
    assert [p.stops() for p in backend.params] == [["\n\n"], ["\n\n"], []]
    assert [p.max_new_tokens for p in backend.params] == [64, 64, 512]


def test_the_text_is_committed_before_any_branch_asks() -> None:
    backend = FakeBackend()
    tips.run(2, 64, backend=backend).sync()
    order = [name for name, _ in backend.calls if name in ("commit", "fork", "generate")]
    assert order == ["commit", "fork", "fork", "generate", "generate", "generate"]
    assert backend.called("commit") == [PREFIX]


@pytest.mark.parametrize("text, size", [("text", 1), ("", 2)])
def test_one_branch_or_no_text_commits_nothing(text: str, size: int) -> None:
    backend = FakeBackend()

    def program(s):
        s += text
        s.fork(size).join()

    run(program, backend)
    assert backend.called("commit") == []
    assert len(backend.called("fork")) == size


def test_the_executor_s_fork_has_its_documented_signature() -> None:
    parameters = inspect.signature(StreamExecutor.fork).parameters
    assert list(parameters) == ["self", "size", "position_ids_offset"]
    assert parameters["size"].default == 1
    assert parameters["position_ids_offset"].default is None


def test_branches_ask_at_the_same_time() -> None:
    backend = FakeBackend()
    backend.gate = threading.Barrier(3)  # passes only when three wait together

    def program(s):
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x")
        forks.join()

    assert run(program, backend)["x"] == ["answer"] * 3


def test_a_branch_has_a_copy_of_everything() -> None:
    def program(s):
        s += sgl.system("sys") + sgl.user_begin() + "in" + sgl.image(b"GIF8x")
        s["v"] = 1
        branch = s.fork(1)[0].stream_executor
        parent = s.stream_executor
        assert branch.variables == {"v": 1}
        for name in ("text_", "messages_", "cur_role", "cur_role_begin_pos", "images_"):
            assert getattr(branch, name) == getattr(parent, name), name
        assert branch.fork_start_text_pos == len(parent.text_)
        for name in ("variables", "messages_", "images_"):
            assert getattr(branch, name) is not getattr(parent, name), name

    backend = FakeBackend()
    run(program, backend)
    assert backend.called("fork") == [None]


def test_a_scope_may_end_in_a_branch() -> None:
    def program(s):
        s += "a"
        with s.var_scope("v"):
            s += "b"
            branch = s.fork(1)[0]
        branch += "c"
        branch.stream_executor.submit(SglVarScopeEnd("v"))
        assert (branch["v"], s["v"]) == ("bc", "b")

    run(program)


def test_branches_do_not_see_each_other() -> None:
    def program(s):
        s += "shared"
        s["v"] = "parent"
        forks = s.fork(2)
        forks[0] += " first"
        forks[0]["v"] = "child"
        forks[0]["new"] = 1
        assert forks[0].text() == "shared first"
        assert forks[1].text() == s.text() == "shared"
        assert forks[1]["v"] == s["v"] == "parent"
        assert "new" not in forks[1] and "new" not in s
        forks.join()
        assert s["new"] == [1]
        assert s["v"] == "parent"  # not new, so not gathered

    run(program)


def test_groups_take_one_expression_one_each_or_a_function() -> None:
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("a")
        forks += ["x", "y"]
        forks += lambda i: str(i)
        assert [f.text() for f in forks] == ["answerx0", "answery1"]
        assert len(forks) == 2
        with pytest.raises(ValueError, match="cannot append 'text' to a group"):
            forks += "text"
        with pytest.raises(ValueError, match="3 entries for 2 branches"):
            forks += ["x", "y", "z"]
        with pytest.raises(ValueError, match="cannot be replaced"):
            forks[0] = forks[1]

    run(program)


def test_joining_can_append_what_the_branches_added() -> None:
    def program(s):
        s += "start:"
        forks = s.fork(2)
        forks += lambda i: f" {i}" + sgl.gen("x")
        forks.join("concate_and_append")
        s += " end"

    assert run(program).text() == "start: 0answer 1answer end"


def test_other_ways_of_joining_are_refused() -> None:
    def program(s):
        with pytest.raises(ValueError, match="'zip'; allowed: gather_variable, concate_and_append"):
            s.fork(2).join("zip")
        with pytest.raises(ValueError, match="at least 1 branch, got 0"):
            s.fork(0)

    run(program)


def test_branches_can_be_read_but_not_appended_to_after_the_join() -> None:
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        forks.join()
        assert forks[0]["x"] == "answer"
        assert forks[1].get_meta_info("x") == {"prompt": ""}
        with pytest.raises(RuntimeError, match="has ended"):
            forks[0] += "more"

    run(program)


def test_joining_raises_what_a_branch_failed_with() -> None:
    def program(s):
        forks = s.fork(2)
        forks[1] += sgl.gen("x")
        forks.join()

    with pytest.raises(RuntimeError, match="model is gone"):
        run(program, FakeBackend(failing("model is gone")))


def test_a_copy_lives_for_a_block() -> None:
    def program(s):
        s += "text"
        with s.copy() as c:
            c += " more" + sgl.gen("x")
            assert c.text() == "text moreanswer"
        assert s["x"] == ["answer"]

    assert run(program).text() == "text"


def test_branches_that_nobody_joins_end_with_the_program() -> None:
    backend = FakeBackend()

    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("x")
        return forks

    forks = run(program, backend).ret_value
    for fork in forks:
        fork.sync()
        assert fork["x"] == "answer"
        assert fork.stream_executor.results.finished


@pytest.mark.parametrize("use_thread", [True, False])
@pytest.mark.parametrize("size", [1, 2])
def test_a_state_that_has_ended_does_not_fork(size: int, use_thread: bool) -> None:
    backend = FakeBackend()
    state = run(lambda s: None, backend, use_thread=use_thread)
    state.sync()
    begun, threads = len(backend.called("begin")), threading.active_count()
    with pytest.raises(RuntimeError, match="the program has ended; nothing can be"):
        state.fork(size)
    with pytest.raises(RuntimeError, match="the program has ended; nothing can be"), state.copy():
        pass
    assert len(backend.called("begin")) == begun
    assert threading.active_count() <= threads


def test_a_state_that_has_failed_and_ended_says_why_instead_of_forking() -> None:
    def program(s):
        s += "text" + sgl.gen("x")

    state = run(program, FakeBackend(failing("model is gone")))
    for size in (1, 2):
        with pytest.raises(RuntimeError, match="model is gone"):
            state.fork(size)


def test_a_branch_that_cannot_begin_leaves_none_running() -> None:
    class Full(FakeBackend):
        def begin_program(self, s) -> None:
            super().begin_program(s)
            if len(self.called("begin")) == 3:
                raise RuntimeError("no more than two")

    backend = Full()
    with pytest.raises(RuntimeError, match="no more than two"):
        run(lambda s: s.fork(2), backend)
    for executor in backend.called("begin")[:2]:  # the program and its first branch
        executor.sync()
        assert executor.results.finished


def test_offsets_of_positions_are_refused_by_name() -> None:
    def program(s):
        with pytest.raises(ValueError, match=r"position_ids_offset=\[7\] is not supported"):
            s.fork(1, position_ids_offset=[7])
        with (
            pytest.raises(ValueError, match=r"position_ids_offset=\[0\] is not supported"),
            s.copy([0]),
        ):
            pass

    backend = FakeBackend()
    assert run(program, backend).error() is None
    assert backend.called("fork") == []
    sgl.function(program).trace(backend=backend)


def test_states_are_joined_by_their_texts_alone() -> None:
    class Joining(FakeBackend):
        support_concate_and_append = True

        def concatenate_and_append(self, src_rids, dst_rid) -> None:
            raise AssertionError("nobody asks for it")

    def program(s):
        forks = s.fork(2)
        forks += ["a", "b"]
        forks.join("concate_and_append")

    assert run(program, Joining()).text() == "ab"
