"""Sessions: later requests continue the tokens of earlier ones."""

import pytest

from sglang.srt.core.messages import ControlInput, SessionRef
from sglang.srt.managers import sessions
from tests.unit.srt.managers.engine import Answer, Engine, generate, prompt_of, reference

A, B, C = prompt_of(12), prompt_of(7, 1), prompt_of(9, 2)


def control(engine: Engine, name: str, **args: object) -> dict[str, object]:
    engine.send(ControlInput(id=1, name=name, args=args))
    answer = engine.controls()[-1]
    assert answer.error is None, answer.error
    return answer.result


def refusal(engine: Engine, name: str, **args: object) -> str:
    engine.send(ControlInput(id=1, name=name, args=args))
    error = engine.controls()[-1].error
    assert error is not None
    return error


def opened(**args: object) -> Engine:
    engine = Engine()
    control(engine, "open_session", **{"session_id": "s", **args})
    return engine


def turn(engine: Engine, name: str, prompt: list[int], num: int = 4, **ref: object) -> Answer:
    session = SessionRef(id="s", **ref)  # type: ignore[arg-type]
    return engine.run(generate(name, prompt, num, session=session))[name]


def why_refused(answer: Answer, status: int = 400) -> str:
    finish = answer.finish
    assert finish is not None and finish.type == "abort" and finish.status_code == status
    return str(finish.message)


def test_second_turn_continues_prompt_and_answer_of_the_first() -> None:
    engine = opened()
    first = turn(engine, "1", A)
    assert first.token_ids == reference(A, 4)
    second = turn(engine, "2", B, rid="1")
    whole = A + first.token_ids + B
    assert second.token_ids == reference(whole, 4)
    assert second.last.prompt_tokens == len(whole)
    assert second.last.cached_tokens == len(A) + 3  # the last token is not computed


def test_branches_of_one_turn_are_apart() -> None:
    engine = opened()
    first = turn(engine, "1", A)
    base = A + first.token_ids
    session = SessionRef(id="s", rid="1")
    answers = engine.run(generate("b", B, 4, session=session), generate("c", C, 4, session=session))
    assert answers["b"].token_ids == reference(base + B, 4)
    assert answers["c"].token_ids == reference(base + C, 4)
    third = turn(engine, "3", A, rid="c")
    assert third.token_ids == reference(base + C + answers["c"].token_ids + A, 4)


def test_without_a_rid_a_turn_begins_anew() -> None:
    engine = opened()
    turn(engine, "1", A)
    assert turn(engine, "2", B).token_ids == reference(B, 4)


@pytest.mark.parametrize("offset", [0, 5, 12, 14, 16])
def test_offset_cuts_the_history(offset: int) -> None:
    engine = opened()
    history = A + turn(engine, "1", A).token_ids
    answer = turn(engine, "2", B, rid="1", offset=offset)
    assert answer.token_ids == reference(history[:offset] + B, 4)
    third = turn(engine, "3", C, rid="2")
    assert third.token_ids == reference(history[:offset] + B + answer.token_ids + C, 4)


def test_previous_output_can_be_dropped() -> None:
    engine = opened()
    turn(engine, "1", A)
    assert turn(engine, "2", B, rid="1", drop_previous_output=True).token_ids == reference(A + B, 4)


def test_replace_forgets_what_came_after() -> None:
    engine = opened()
    turn(engine, "1", A)
    turn(engine, "2", B, rid="1")
    turn(engine, "3", C, rid="2")
    turn(engine, "4", C, rid="1", replace=True)
    for rid in ("2", "3"):
        assert "is no request of session" in why_refused(turn(engine, f"x{rid}", A, rid=rid))
    assert turn(engine, "5", A, rid="4").finish is not None
    turn(engine, "6", A, replace=True)
    assert "is no request" in why_refused(turn(engine, "7", A, rid="1"))


def test_a_long_chain_of_turns() -> None:
    engine = Engine(context=4000, pool=8000)
    control(engine, "open_session", session_id="s")
    history: list[int] = []
    last = None
    for i in range(300):
        answer = turn(engine, f"{i}", [i % 90], 2, rid=last)
        history += [i % 90, *answer.token_ids]
        last = f"{i}"
    assert turn(engine, "end", A, rid=last).token_ids == reference(history + A, 4)


def test_aborted_turn_leaves_the_session_as_it_was() -> None:
    engine = opened()
    turn(engine, "1", A)
    late = turn(engine, "2", B, 50, rid="1")
    assert late.finish is not None
    engine.send(generate("3", B, 50, session=SessionRef(id="s", rid="1"), deadline=-1.0))
    engine.run()
    assert "is no request of session" in why_refused(turn(engine, "4", A, rid="3"))
    assert turn(engine, "5", A, rid="1").finish is not None


def test_unfinished_turn_cannot_be_continued() -> None:
    engine = opened()
    engine.send(generate("1", A, 30, session=SessionRef(id="s")))
    engine.step()
    engine.send(generate("2", B, 4, session=SessionRef(id="s", rid="1")))
    engine.step()
    assert "has not finished" in why_refused(engine.outbox.answers["2"])
    engine.run()


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ({"rid": "nobody"}, "is no request of session"),
        ({"rid": "1", "offset": 17}, "offset must be in 0 … 16"),
        ({"rid": "1", "offset": -1}, "offset must be in 0 … 16"),
    ],
)
def test_wrong_references_are_refused_by_name(ref: dict[str, object], message: str) -> None:
    engine = opened()
    turn(engine, "1", A)
    assert message in why_refused(turn(engine, "2", B, **ref))


def test_unknown_session_is_refused() -> None:
    engine = Engine()
    assert "is not an open session" in why_refused(turn(engine, "1", A), 404)


def test_history_must_fit_the_context_and_the_capacity() -> None:
    engine = Engine(context=30)
    control(engine, "open_session", session_id="s", capacity_of_str_len=25)
    turn(engine, "1", A)
    assert "opened for 25 tokens" in why_refused(turn(engine, "2", prompt_of(10, 3), rid="1"))
    control(engine, "close_session", session_id="s")
    control(engine, "open_session", session_id="s")
    turn(engine, "1b", A)
    assert "context length (30 tokens)" in why_refused(turn(engine, "2b", prompt_of(14), rid="1b"))


def test_closed_session_is_gone_and_its_name_is_free() -> None:
    engine = opened()
    turn(engine, "1", A)
    assert "is open already" in refusal(engine, "open_session", session_id="s")
    control(engine, "close_session", session_id="s")
    assert "is not open" in refusal(engine, "close_session", session_id="s")
    assert "is not an open session" in why_refused(turn(engine, "2", B, rid="1"), 404)
    control(engine, "open_session", session_id="s")
    assert "is no request" in why_refused(turn(engine, "3", B, rid="1"))


def test_session_without_requests_closes_by_itself() -> None:
    engine = opened(timeout=10.0)
    turn(engine, "1", A)
    engine.now += 9
    turn(engine, "2", B, rid="1")
    engine.now += 11
    assert "is not an open session" in why_refused(turn(engine, "3", B, rid="2"), 404)
    assert len(engine.scheduler.sessions) == 0


def test_session_that_works_does_not_close() -> None:
    engine = opened(timeout=10.0)
    engine.send(generate("1", A, 30, session=SessionRef(id="s")))
    engine.step()
    engine.now += 100
    control(engine, "open_session", session_id="other")
    assert len(engine.scheduler.sessions) == 2
    engine.run()
    assert turn(engine, "2", B, rid="1").finish is not None


def test_wrong_arguments_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    assert "capacity_of_str_len" in refusal(engine, "open_session", capacity_of_str_len=-1)
    assert "timeout" in refusal(engine, "open_session", timeout=0)
    assert "streaming" in refusal(engine, "open_session", streaming=True)
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 1)
    made = control(engine, "open_session")["session_id"]
    assert isinstance(made, str) and made
    assert "1 sessions are open" in refusal(engine, "open_session")
