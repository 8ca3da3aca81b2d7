"""Several answers from one call."""

import pytest

import sglang as sgl
from sglang.lang.speculation import match_turn
from tests.unit.lang.fake_backend import FakeBackend


@sgl.function(num_api_spec_tokens=64)
def card(s):
    s += "Name: " + sgl.gen("name", stop="\n")
    s += "\nJob: " + sgl.gen("job", stop="\n")
    s += "\nEnd"


def test_one_call_serves_what_the_program_says_too() -> None:
    backend = FakeBackend(lambda prompt: "Ada\nJob: writer\nAge: 30")
    state = card.run(backend=backend)
    assert (state["name"], state["job"]) == ("Ada", "writer")
    assert state.text() == "Name: Ada\nJob: writer\nEnd"
    (params,) = backend.params
    assert (params.max_new_tokens, params.stops()) == (64, [])


def test_a_model_that_disagrees_is_asked_again() -> None:
    answers = iter(["Ada\nAge: 30", "writer\nEnd"])
    backend = FakeBackend(lambda prompt: next(answers))
    state = card.run(backend=backend)
    assert (state["name"], state["job"]) == ("Ada", "writer")
    assert backend.called("generate") == ["Name: ", "Name: Ada\nJob: "]


def test_an_answer_without_its_stop_is_asked_for_plainly() -> None:
    backend = FakeBackend(lambda prompt: "endless")
    state = card.run(backend=backend)
    assert state["job"] == "endless"
    assert [(p.max_new_tokens, p.stops()) for p in backend.params] == [
        (64, []), (128, ["\n"]), (64, []), (128, ["\n"]),
    ]  # fmt: skip


def test_an_answer_that_has_no_stop_is_never_ahead() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.gen("x", 3)

    backend = FakeBackend()
    assert program.run(backend=backend)["x"] == "answer"
    assert [p.max_new_tokens for p in backend.params] == [3]


@sgl.function(num_api_spec_tokens=64)
def chat_card(s):
    s += sgl.user("Ada?")
    s += sgl.assistant(
        "Name: " + sgl.gen("name", stop="\n") + "\nJob: " + sgl.gen("job", stop=".") + "."
    )


def chat(*answers: str) -> FakeBackend:
    left = iter(answers)
    return FakeBackend(lambda prompt: next(left), is_chat_model=True)


def test_a_chat_turn_is_asked_for_once_and_cut() -> None:
    backend = chat("Name: Ada\nJob: writer. And more")
    state = chat_card.run(backend=backend)
    assert (state["name"].strip(), state["job"].strip()) == ("Ada", "writer")
    assert state.messages()[-1]["content"].startswith("Name: ")
    assert "writer" in state.text()
    assert backend.called("generate") == ["USER:Ada?\nASSISTANT:"]


def test_a_chat_turn_that_does_not_fit_is_tried_again() -> None:
    backend = chat("I am sorry", "Name: Ada\nJob: writer.")
    assert chat_card.run(backend=backend)["name"].strip() == "Ada"
    state = chat_card.run(backend=chat("no", "no", "no"))
    assert "does not follow the program's, after 3 tries" in str(state.error())


def test_a_template_s_stops_alone_put_no_answer_ahead() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.gen("x", 3)

    backend = FakeBackend(chat_template="chatml")
    assert program.run(backend=backend)["x"] == "answer"
    assert [(p.max_new_tokens, p.stops()) for p in backend.params] == [(3, ["<|im_end|>"])]


OWN = [
    ("max_tokens", 5), ("min_tokens", 2), ("n", 2), ("stop_token_ids", [1]), ("stop_regex", "a"),
    ("temperature", 0.5), ("top_p", 0.5), ("top_k", 5), ("min_p", 0.1), ("frequency_penalty", 1.0),
    ("presence_penalty", 1.0), ("ignore_eos", True), ("return_logprob", True),
    ("logprob_start_len", 1), ("top_logprobs_num", 2), ("return_text_in_logprobs", True),
    ("dtype", int), ("regex", "a+"), ("json_schema", "{}"),
]  # fmt: skip


@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize(("name", "value"), OWN)
def test_an_answer_of_a_shared_call_has_no_parameters_of_its_own(
    name: str, value: object, is_chat_model: bool
) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.assistant(sgl.gen("x", stop="\n", **{name: value}))

    backend = FakeBackend(lambda prompt: "yes\n", is_chat_model=is_chat_model)
    told = str(program.run(backend=backend).error())
    assert f"this gen cannot have {name}={value!r}; allowed: stop" in told
    assert backend.params == []


@pytest.mark.parametrize("is_chat_model", [True, False])
@pytest.mark.parametrize("option", [{"n": 2}, {"return_logprob": True}, {"top_logprobs_num": 2}])
def test_what_run_asks_for_and_a_shared_call_cannot_give_is_refused(
    option: dict[str, object], is_chat_model: bool
) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.assistant(sgl.gen("x", stop="\n"))

    backend = FakeBackend(lambda prompt: "yes\n", is_chat_model=is_chat_model)
    [(name, value)] = option.items()
    assert f"cannot have {name}={value!r}" in str(program.run(backend=backend, **option).error())


@pytest.mark.parametrize("is_chat_model", [True, False])
def test_the_parameters_of_run_hold_for_the_shared_call(is_chat_model: bool) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.assistant(sgl.gen("x", stop="\n"))

    backend = FakeBackend(lambda prompt: "yes\n", is_chat_model=is_chat_model)
    assert program.run(backend=backend, temperature=0.5, top_p=0.25)["x"] == "yes"
    (params,) = backend.params
    assert (params.temperature, params.top_p, params.max_new_tokens) == (0.5, 0.25, 64)


def test_reading_inside_the_turn_is_refused_instead_of_waiting_forever() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        with s.assistant():
            s += sgl.gen("x", stop=".")
            with pytest.raises(RuntimeError, match="read it after the turn"):
                _ = s["x"]

    assert program.run(backend=chat("yes. no"))["x"] == "yes"


def test_turns_without_answers_are_not_asked_for() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.assistant("only text")

    backend = chat()
    assert program.run(backend=backend).text() == "ASSISTANT:only text\n"
    assert backend.calls and not backend.called("generate")


def test_reasoning_and_speculation_do_not_go_together() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        s += sgl.assistant(sgl.separate_reasoning(sgl.gen("x")))

    assert "num_api_spec_tokens" in str(program.run(backend=chat()).error())


def test_matching_needs_every_text_of_the_program() -> None:
    expr = sgl.gen("x")
    assert match_turn(" A: 1 B", ["A:", (expr, []), "B"]) == [
        ("A:", None),
        (" 1 ", expr),
        ("B", None),
    ]
    assert match_turn("A: 1", ["A:", (expr, []), "B"]) is None
    assert match_turn("B", ["A:"]) is None


def test_a_turn_that_is_still_collected_cannot_fork() -> None:
    @sgl.function(num_api_spec_tokens=64)
    def program(s):
        with s.assistant():
            s += sgl.gen("x")
            s.fork(2)

    with pytest.raises(ValueError, match="end the turn first"):
        program.run(backend=chat())
