"""Programs: how they are declared, bound and called."""

import pytest

import sglang as sgl
from sglang.lang.ir import SglFunction, SglGen, SglSelect
from tests.unit.lang.fake_backend import FakeBackend


@sgl.function
def ask(s, question, hint="none"):
    s += question + sgl.gen("answer")
    return hint


def test_both_forms_of_the_decorator_make_programs() -> None:
    @sgl.function(num_api_spec_tokens=32)
    def other(s):
        s += "x"

    assert isinstance(ask, SglFunction)
    assert isinstance(other, SglFunction)
    assert other.num_api_spec_tokens == 32
    assert ask.__name__ == "ask"


@pytest.mark.parametrize("wrong", [lambda state: None, lambda: None, lambda x, s: None])
def test_the_first_argument_must_be_s(wrong) -> None:
    with pytest.raises(AssertionError, match='The first argument must be "s"'):
        sgl.function(wrong)


def test_a_parameter_cannot_have_the_name_of_an_option() -> None:
    with pytest.raises(ValueError, match="'temperature', which is an option of run"):
        sgl.function(lambda s, temperature: None)


def test_arguments_come_by_position_by_name_and_bound() -> None:
    backend = FakeBackend()
    assert ask.run("Why?", backend=backend).text() == "Why?answer"
    assert ask.run(question="How?", backend=backend).text() == "How?answer"
    bound = ask.bind(question="Who?")
    assert bound.run(hint="h", backend=backend).ret_value == "h"
    assert bound.bind(hint="i").run(backend=backend).text() == "Who?answer"


def test_binding_an_unknown_parameter_raises() -> None:
    with pytest.raises(TypeError, match=r"no parameter 'q'; allowed: question, hint"):
        ask.bind(q=1)


def test_a_program_needs_a_backend() -> None:
    with pytest.raises(ValueError, match="set_default_backend"):
        ask.run("x")


def test_the_default_backend_may_be_a_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend()

    class Runtime:
        endpoint = backend

    monkeypatch.setattr(sgl.global_config, "default_backend", None)
    sgl.set_default_backend(Runtime())
    assert ask.run("x").text() == "xanswer"
    assert ask("x").text() == "xanswer"  # calling is running
    sgl.flush_cache()
    assert backend.called("flush") == [None]
    assert sgl.get_server_info(Runtime()) == {"fake": True}


def test_a_runtime_stands_for_its_backend_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = FakeBackend(chat_template="chatml")

    class Runtime:
        endpoint = backend

    @sgl.function
    def program(s):
        s += sgl.user("x" * 70)

    beginning = program.trace(backend=backend).constant_prefix()
    assert beginning.startswith("<|im_start|>user")
    assert program.trace(backend=Runtime()).constant_prefix() == beginning
    assert program.run(backend=Runtime()).text() == beginning
    program.cache(Runtime())
    assert backend.called("cache_prefix") == [beginning]
    assert [s.text() for s in program.run_batch([{}, {}], backend=Runtime())] == [beginning] * 2

    monkeypatch.setattr(sgl.global_config, "default_backend", Runtime())
    assert program.trace().constant_prefix() == program.run().text() == beginning
    sgl.set_default_backend(None)
    assert program.trace().constant_prefix() == "USER:" + "x" * 70 + "\n"
    for call in (program.run, program.cache, sgl.flush_cache, sgl.get_server_info):
        with pytest.raises(ValueError, match="no backend to run against; call sgl.set_default"):
            call()


def test_options_of_run_hold_where_gen_says_nothing() -> None:
    backend = FakeBackend()

    @sgl.function
    def two(s):
        s += sgl.gen("a") + sgl.gen("b", 5, temperature=0.5, stop="\n")

    two.run(backend=backend, max_new_tokens=7, temperature=0, stop=["!"]).sync()
    first, second = backend.params
    assert (first.max_new_tokens, first.temperature, first.stops()) == (7, 0, ["!"])
    assert (second.max_new_tokens, second.temperature, second.stops()) == (5, 0.5, ["\n"])


def test_gen_takes_its_parameters_in_the_documented_order() -> None:
    expr = sgl.gen("x", 1, 2, 3, "s", [4], "r", 0.5, 0.6, 7, 0.8, 0.9, 1.0, True, True, 0, 2, True)
    assert isinstance(expr, SglGen)
    assert expr.overrides == {
        "max_new_tokens": 1, "min_new_tokens": 2, "n": 3, "stop": "s", "stop_token_ids": [4],
        "stop_regex": "r", "temperature": 0.5, "top_p": 0.6, "top_k": 7, "min_p": 0.8,
        "frequency_penalty": 0.9, "presence_penalty": 1.0, "ignore_eos": True,
        "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
    }  # fmt: skip


def test_typed_forms_of_gen() -> None:
    number, text = sgl.gen_int("n", 4, 2, "stop"), sgl.gen_string("t", max_tokens=3)
    assert number.overrides == {"max_new_tokens": 4, "n": 2, "stop": "stop", "dtype": int}
    assert text.overrides == {"max_new_tokens": 3, "dtype": str}
    with pytest.raises(TypeError, match="have no regex"):
        sgl.gen_int("n", regex="x")


def test_gen_with_choices_is_a_select() -> None:
    expr = sgl.gen("x", choices=["a", "b"])
    assert isinstance(expr, SglSelect)
    assert expr.temperature == 0.0
    assert expr.choices_method is sgl.token_length_normalized


def test_what_cannot_work_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        sgl.gen("x", regex="(")
    with pytest.raises(AssertionError, match="choices"):
        sgl.select("x")
    with pytest.raises(ValueError, match="choices must be texts"):
        sgl.select("x", ["a", ""])
    with pytest.raises(ValueError, match="unknown model_type"):
        sgl.separate_reasoning(sgl.gen("x"), "nobody")
