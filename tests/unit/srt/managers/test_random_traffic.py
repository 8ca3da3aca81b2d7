"""Long runs: every answer equals the reference, and no page is lost on the way."""

import random

import pytest

from sglang.srt.core.config import PriorityConfig
from sglang.srt.core.messages import AbortInput
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference


@pytest.mark.parametrize("page_size", [1, 16, 64])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"disable_radix_cache": True},
        {"schedule_policy": "lpm"},
        {"mixed_chunk": True},
        {"priority": PriorityConfig(enabled=True), "retraction_policy": "priority"},
    ],
)
def test_random_traffic(page_size: int, seed: int, options: dict[str, object]) -> None:
    rng = random.Random(seed)
    engine = Engine(
        pool=1024,
        page_size=page_size,
        context=600,
        chunked_prefill_size=64,
        max_running_requests=8,
        schedule_conservativeness=0.02,
        **options,  # type: ignore[arg-type]
    )
    base = prompt_of(160)
    wanted: dict[str, tuple[list[int], int]] = {}
    for i in range(120):
        length = rng.choice([1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 130])
        prompt = base[: rng.randrange(161)] + prompt_of(length, rng.randrange(40))
        count = rng.choice([0, 1, 2, 30, 150])
        wanted[f"r{i}"] = (prompt, count)
        engine.send(
            generate(
                f"r{i}",
                prompt,
                count,
                extra_key=rng.choice([None, None, "k"]),
                priority=rng.choice([None, 0, 50]),
            )
        )
        for _ in range(rng.randrange(6)):
            engine.step()
        if rng.random() < 0.15:
            engine.send(AbortInput(rids=[f"r{rng.randrange(i + 1)}"]))
    answers = engine.run()
    for rid, (prompt, count) in wanted.items():
        finish = answers[rid].finish
        assert finish is not None
        expected = reference(prompt, count)
        if finish.type == "abort":
            assert answers[rid].token_ids == expected[: len(answers[rid].token_ids)]
        else:
            assert answers[rid].token_ids == expected
    assert engine.used() == 0
    assert sum(answer.last.num_retractions for answer in answers.values()) > 0
