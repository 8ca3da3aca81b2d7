"""Mixed passes: running answers grow while prompts are computed."""

import pytest

from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference


def test_a_stream_gets_a_token_in_every_pass() -> None:
    engine = Engine(chunked_prefill_size=16, mixed_chunk=True)
    engine.send(generate("stream", prompt_of(8), 40))
    engine.step()
    answers = engine.run(generate("long", prompt_of(200, 1), 2))
    passes = [batch for batch in engine.model.batches if batch.num_prompts]
    assert sum(batch.forward_mode.is_mixed() for batch in passes) >= len(passes) - 2
    assert answers["stream"].token_ids == reference(prompt_of(8), 40)
    assert answers["long"].token_ids == reference(prompt_of(200, 1), 2)


def test_riders_take_their_tokens_from_the_chunk() -> None:
    engine = Engine(chunked_prefill_size=16, mixed_chunk=True)
    engine.send(*(generate(f"s{i}", prompt_of(8, i), 60) for i in range(3)))
    engine.step()
    engine.step()
    engine.run(generate("long", prompt_of(200, 9), 2))
    mixed = [sum(b.extend_seq_lens) for b in engine.model.batches if b.forward_mode.is_mixed()]
    assert mixed and max(mixed) <= 16


@pytest.mark.parametrize("who", ["stream", "long"])
def test_logprobs_keep_passes_apart(who: str) -> None:
    engine = Engine(chunked_prefill_size=16, mixed_chunk=True)
    wants = {"return_logprob": True}
    engine.send(generate("stream", prompt_of(8), 40, **(wants if who == "stream" else {})))
    engine.step()
    engine.run(generate("long", prompt_of(200, 1), 2, **(wants if who == "long" else {})))
    assert not any(batch.forward_mode.is_mixed() for batch in engine.model.batches)


def test_many_answers_leave_room_for_prompts() -> None:
    engine = Engine(chunked_prefill_size=16, mixed_chunk=True)
    engine.send(*(generate(f"s{i}", prompt_of(8, i), 90) for i in range(12)))
    for _ in range(20):
        engine.step()
    answers = engine.run(generate("long", prompt_of(100, 99), 2))
    assert answers["long"].token_ids == reference(prompt_of(100, 99), 2)
    for i in range(12):
        assert answers[f"s{i}"].token_ids == reference(prompt_of(8, i), 90)
