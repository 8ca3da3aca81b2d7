"""What programs append and read."""

import threading

import pytest

import sglang as sgl
from sglang.lang.chat_template import get_chat_template
from tests.unit.lang.fake_backend import GUARD, FakeBackend


def run(func, backend=None, **options):
    return sgl.function(func).run(backend=backend or FakeBackend(), **options)


def test_everything_is_appended_in_order() -> None:
    def program(s):
        s += "one "
        s += sgl.gen("a") + " two " + sgl.gen("b")
        s += [" three ", sgl.gen("c")]
        s += " four " + sgl.select("d", ["x", "yy"])

    state = run(program)
    assert state.text() == "one answer two answer three answer four yy"
    assert [state[name] for name in "abcd"] == ["answer", "answer", "answer", "yy"]
    assert repr(state) == f"ProgramState({state.text()})"


def appended(expr, backend=None):
    def program(s):
        s += expr

    return run(program, backend)


@pytest.mark.parametrize("wrong, error", [(None, "append None"), (3, "str")])
def test_other_things_cannot_be_appended(wrong, error: str) -> None:
    with pytest.raises((ValueError, TypeError), match=error):
        appended(wrong)


def test_control_flow_waits_for_the_model() -> None:
    backend = FakeBackend()
    backend.gate = threading.Event()
    began = threading.Event()

    def program(s):
        s += "Which tool? " + sgl.gen("tool")
        began.set()
        if s["tool"] == "answer":
            s += "!"

    thread = threading.Thread(target=lambda: states.append(run(program, backend)))
    states: list = []
    thread.start()
    assert began.wait(GUARD)  # appending did not wait
    backend.gate.set()
    thread.join(GUARD)
    assert states[0].text() == "Which tool? answer!"


def test_a_variable_that_is_produced_twice_is_the_newest() -> None:
    answers = iter(["first", "second"])
    seen = []

    def program(s):
        for _ in range(2):
            s += sgl.gen("x")
            seen.append(s["x"])

    run(program, FakeBackend(lambda prompt: next(answers)))
    assert seen == ["first", "second"]


def test_variables_can_be_set_and_asked_for() -> None:
    def program(s):
        s["mine"] = 3
        s.set_var("other", [1])
        assert "mine" in s and "yours" not in s
        s += sgl.gen("later")
        assert "later" in s
        assert s.get_var("other") == [1]

    state = run(program)
    state.sync()
    with pytest.raises(KeyError, match="no variable 'yours'; there are: mine, other, later"):
        _ = state["yours"]


def test_meta_information_comes_with_the_answer() -> None:
    state = appended("ask " + sgl.gen("x"))
    assert state.get_meta_info("x") == {"prompt": "ask "}


def test_a_scope_makes_a_variable_of_its_text() -> None:
    def program(s):
        s += "before "
        with s.var_scope("part"):
            s += "in " + sgl.gen("x")
        s += " after"

    assert run(program)["part"] == "in answer"


def test_roles_become_text_and_messages() -> None:
    def program(s):
        s += sgl.system("Be brief.")
        s += sgl.user("Hello" + sgl.gen("u"))
        with s.assistant():
            s += sgl.gen("a")
        s += s.user("More")
        s += sgl.assistant_begin() + "ok" + sgl.assistant_end()

    backend = FakeBackend(lambda prompt: "  spaced", chat_template="chatml")
    state = run(program, backend)
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello  spaced"},
        {"role": "assistant", "content": "spaced"},
        {"role": "user", "content": "More"},
        {"role": "assistant", "content": "ok"},
    ]
    assert state.text().startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert "<|im_start|>assistant\n  spaced<|im_end|>\n" in state.text()
    assert backend.params[0].stops() == ["<|im_end|>"]


def test_the_default_system_prompt_comes_before_the_first_turn() -> None:
    state = appended(sgl.user("Hi"), FakeBackend(chat_template="qwen"))
    template = get_chat_template("qwen")
    assert state.messages()[0]["content"] == template.default_system_prompt
    assert state.text() == template.get_prompt(state.messages())


@pytest.mark.parametrize(
    "expr", [sgl.user(sgl.assistant("x")), sgl.user_begin() + sgl.assistant_end(), sgl.user_end()]
)
def test_roles_cannot_be_mixed_up(expr) -> None:
    error = appended(expr).error()
    assert isinstance(error, ValueError)
    assert "role" in str(error)


def test_images_are_text_data_and_messages(tmp_path) -> None:
    path = tmp_path / "dot.png"
    path.write_bytes(b"\x89PNG-data")
    backend = FakeBackend()
    state = appended(sgl.user(sgl.image(str(path)) + "What is it?"), backend)
    uri = "data:image/png;base64,iVBORy1kYXRh"
    assert state.text() == "USER:<image>What is it?\n"
    assert state.stream_executor.images_ == [uri]
    assert backend.called("image") == [[uri]]
    assert state.messages()[0]["content"] == [
        {"type": "text", "text": "What is it?"},
        {"type": "image_url", "image_url": {"url": uri}},
    ]


def test_several_answers_go_into_the_variable_and_the_first_into_the_text() -> None:
    state = appended("x" + sgl.gen("a", n=2) + ".", FakeBackend(lambda prompt: ["one", "two"]))
    assert state["a"] == ["one", "two"]
    assert state.text() == "xone."


def test_reasoning_goes_into_a_variable_of_its_own() -> None:
    def program(s):
        s += "Q" + sgl.separate_reasoning("A:" + sgl.gen("x"), model_type="qwen3") + "."

    state = run(program, FakeBackend(lambda p: "<think>\nhm\n</think>\n\n42"))
    assert state["x"] == "42"
    assert state["x_reasoning_content"] == "hm"
    assert state.text() == "QA:42."


def test_without_a_thread_everything_happens_at_once() -> None:
    backend = FakeBackend()

    def program(s):
        s += sgl.gen("x")
        assert len(backend.called("generate")) == 1
        forks = s.fork(2)
        forks += "z" + sgl.gen("y")
        assert len(backend.called("generate")) == 3
        forks.join()

    state = run(program, backend, use_thread=False)
    assert state["y"] == ["answer", "answer"]


def test_backends_are_told_when_programs_begin_and_end() -> None:
    backend = FakeBackend()
    state = run(lambda s: s.fork(2).join(), backend)
    state.sync()
    begun, ended = backend.called("begin"), backend.called("end")
    assert len(begun) == 3
    assert {id(s) for s in begun} == {id(s) for s in ended}
    assert set(backend.called("end_request")) == {s.sid for s in begun}
