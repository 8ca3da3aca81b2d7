"""Many runs of one program."""

import threading

import pytest

import sglang as sgl
from tests.unit.lang.fake_backend import GUARD, FakeBackend

LONG = "Answer the question in one short sentence, and do not say more than that. "


@sgl.function
def ask(s, question, hint="hint"):
    s += LONG
    s += "Q: " + question + "\n" + hint + sgl.gen("answer")


def batch(rows, backend=None, program=ask, **options):
    return program.run_batch(rows, backend=backend or FakeBackend(), **options)


@pytest.mark.parametrize(
    "rows", [[{"question": "a"}, {"question": "b"}], [("a",), ("b", "hint")], ["a", "b"]]
)
def test_states_come_in_the_order_of_the_rows(rows) -> None:
    backend = FakeBackend(lambda prompt: prompt[-6:-5])
    assert [state["answer"] for state in batch(rows, backend)] == ["a", "b"]


def test_an_empty_batch_is_empty() -> None:
    assert batch([]) == []
    assert list(batch([], generator_style=True)) == []


def test_what_all_runs_begin_with_is_planted_first() -> None:
    backend = FakeBackend()
    batch(["a", "b"], backend)
    names = [name for name, _ in backend.calls if name in ("cache_prefix", "generate")]
    assert names == ["cache_prefix", "generate", "generate"]
    assert backend.called("cache_prefix") == [LONG + "Q: "]
    assert backend.called("uncache_prefix") == [LONG + "Q: "]


def test_arguments_that_are_the_same_belong_to_the_beginning() -> None:
    backend = FakeBackend()
    batch([("same", "1"), ("same", "2")], backend)
    assert backend.called("cache_prefix") == [LONG + "Q: same\n"]


def test_turns_and_bound_arguments_belong_to_the_beginning() -> None:
    @sgl.function
    def chat(s, style, question):
        s += sgl.system(style)
        s += sgl.user(question)

    backend = FakeBackend(chat_template="chatml")
    batch(["a", "b"], backend, chat.bind(style=LONG))
    (planted,) = backend.called("cache_prefix")
    assert planted == f"<|im_start|>system\n{LONG}<|im_end|>\n<|im_start|>user\n"


@pytest.mark.parametrize("rows", [["a"], []])
def test_one_run_needs_nothing_planted(rows) -> None:
    backend = FakeBackend()
    batch(rows, backend)
    assert backend.called("cache_prefix") == []


def test_short_beginnings_are_not_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()
    exactly = sgl.function(lambda s, q: s.__iadd__("x" * 64).__iadd__(q))
    batch(["a", "b"], backend, exactly)
    assert backend.called("cache_prefix") == []
    monkeypatch.setattr(sgl.global_config, "enable_precache_with_tracing", False)
    batch(["a", "b"], backend)
    assert backend.called("cache_prefix") == []


def test_a_program_can_be_planted_by_itself() -> None:
    backend = FakeBackend()
    ask.cache(backend)
    assert backend.called("cache_prefix") == [LONG + "Q: "]
    assert backend.called("generate") == []


def test_runs_go_side_by_side() -> None:
    backend = FakeBackend()
    backend.gate = threading.Barrier(4)
    assert len(batch(list("abcd"), backend)) == 4


def test_no_thread_is_left() -> None:
    @sgl.function
    def program(s, number):
        s += "x"
        s.fork(2).join()
        s += sgl.gen("x")

    before = set(threading.enumerate())
    batch(range(8), program=program)
    for thread in set(threading.enumerate()) - before:
        thread.join(GUARD)
        assert not thread.is_alive()


def test_one_thread_means_one_after_the_other() -> None:
    backend = FakeBackend()
    states = batch(list("abc"), backend, num_threads=1)
    assert [p[-6:-5] for p in backend.called("generate")] == ["a", "b", "c"]
    assert len(states) == 3


def test_a_generator_yields_states_as_they_are_done() -> None:
    backend = FakeBackend()
    states = batch(list("ab"), backend, generator_style=True, num_threads=1, progress_bar=True)
    assert next(states)["answer"] == "answer"
    assert next(states)["answer"] == "answer"
    with pytest.raises(StopIteration):
        next(states)


def test_a_failing_function_ends_the_batch() -> None:
    ran = []

    @sgl.function
    def program(s, number):
        ran.append(number)
        if number == 1:
            raise ValueError("number one")

    with pytest.raises(ValueError, match="number one"):
        batch([0, 1, *range(2, 500)], program=program, num_threads=1)
    assert len(ran) < 500


def test_sampling_options_hold_for_the_batch() -> None:
    backend = FakeBackend()
    batch(["a"], backend, max_new_tokens=3, temperature=0)
    assert (backend.params[0].max_new_tokens, backend.params[0].temperature) == (3, 0)


@pytest.mark.parametrize(
    "options, error",
    [
        ({"num_threads": 0}, "num_threads must be a number from 1"),
        ({"question": "x"}, "no option 'question'"),
    ],
)
def test_wrong_options_are_refused(options, error: str) -> None:
    with pytest.raises((TypeError, ValueError), match=error):
        batch(["a"], **options)


def test_a_row_with_too_many_values_is_refused() -> None:
    with pytest.raises(TypeError, match="3 values, the program ask has 2 parameters that are not"):
        batch([("a", "b", "c")])
