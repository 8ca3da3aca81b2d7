"""Nobody's stream stands still while the prompts of others are computed."""

from itertools import groupby

from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference


def longest_pause(engine: Engine, rid: str) -> int:
    """Most steps in a row that computed nothing for the request, between its first and last."""
    took_part = [any(req.rid == rid for req in batch.reqs) for batch in engine.model.batches]
    first, last = took_part.index(True), len(took_part) - took_part[::-1].index(True)
    pauses = [len(list(run)) for part, run in groupby(took_part[first:last]) if not part]
    return max(pauses, default=0)


def test_a_long_prompt_in_chunks_holds_a_stream_for_one_chunk_at_a_time() -> None:
    engine = Engine(chunked_prefill_size=16)
    engine.send(generate("stream", prompt_of(8), 40))
    engine.step()
    answers = engine.run(generate("long", prompt_of(400, seed=1), 2))
    assert longest_pause(engine, "stream") == 1
    assert answers["stream"].token_ids == reference(prompt_of(8), 40)
    assert answers["long"].token_ids == reference(prompt_of(400, seed=1), 2)


def test_a_row_of_new_prompts_holds_a_stream_for_one_prefill_at_a_time() -> None:
    engine = Engine(chunked_prefill_size=16)
    engine.send(generate("stream", prompt_of(8), 40))
    engine.step()
    engine.run(*(generate(f"p{i}", prompt_of(15, seed=i + 1), 1) for i in range(20)))
    assert longest_pause(engine, "stream") == 1


def test_without_streams_prefill_goes_on_without_pause() -> None:
    engine = Engine(chunked_prefill_size=16)
    engine.run(generate("long", prompt_of(160), 1))
    assert len(engine.model.batches) == 10
