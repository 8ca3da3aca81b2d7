"""In which order the policies let waiting requests in."""

import random

import pytest

from sglang.srt.managers.schedule_policy import MAX_MATCHED_QUEUE, SchedulePolicy
from tests.unit.srt.managers.engine import Engine, generate, prompt_of, reference

HEAD = prompt_of(40)
TAIL_A, TAIL_B = prompt_of(20, 1), prompt_of(20, 2)
PLANTED = {"stem": HEAD, "a": HEAD + TAIL_A, "b": HEAD + TAIL_B, "other": prompt_of(30, 3)}


def order_of(policy: str, waiting: list[tuple[str, int]], **options: object) -> list[str]:
    """The order in which requests (beginning, max_new_tokens) would be admitted."""
    engine = Engine(schedule_policy=policy, **options)
    for prompt in PLANTED.values():
        engine.ask(prompt, 1)
    engine.send(
        *(
            generate(f"{i}:{name}", [*PLANTED.get(name, []), 90, i % 90], length)
            for i, (name, length) in enumerate(waiting)
        )
    )
    queue = engine.scheduler.waiting.reqs
    SchedulePolicy(policy, engine.memory.tree_cache).calc_priority(queue)
    return [req.rid for req in queue]


def test_fcfs_is_the_order_of_arrival() -> None:
    assert order_of("fcfs", [("new", 1), ("a", 9), ("stem", 3)]) == ["0:new", "1:a", "2:stem"]


def test_lpm_takes_the_longest_cached_prefix() -> None:
    waiting = [("new", 1), ("stem", 1), ("a", 1), ("other", 1)]
    assert order_of("lpm", waiting) == ["2:a", "1:stem", "3:other", "0:new"]


def test_lof_takes_who_may_write_most() -> None:
    assert order_of("lof", [("a", 2), ("b", 9), ("new", 9), ("a", 5)]) == [
        "1:b", "2:new", "3:a", "0:a",
    ]  # fmt: skip


def test_dfs_weight_stays_in_the_branch_that_most_wait_for() -> None:
    waiting = [
        ("other", 1),
        ("b", 1),
        ("a", 1),
        ("stem", 1),
        ("a", 1),
        ("other", 1),
        ("b", 1),
        ("b", 1),
    ]
    # The stem and what is below it have six requests, `other` two; below the stem b has three.
    assert order_of("dfs-weight", waiting) == [
        "3:stem", "1:b", "6:b", "7:b", "2:a", "4:a", "0:other", "5:other",
    ]  # fmt: skip


def test_random_is_every_order() -> None:
    random.seed(4)
    waiting = [("new", 1), ("new", 1), ("new", 1)]
    assert len({tuple(order_of("random", waiting)) for _ in range(40)}) == 6


@pytest.mark.parametrize("policy", ["lpm", "dfs-weight"])
def test_long_queues_and_engines_without_cache_keep_the_order_of_arrival(policy: str) -> None:
    many = [("new", 1), *[("a", 1)] * MAX_MATCHED_QUEUE]
    assert order_of(policy, many)[0] == "0:new"
    assert order_of(policy, many[:2], disable_radix_cache=True) == ["0:new", "1:a"]


@pytest.mark.parametrize("policy", ["fcfs", "lpm", "dfs-weight", "lof", "random"])
def test_every_answer_is_right_in_every_order(policy: str) -> None:
    engine = Engine(schedule_policy=policy, pool=400, max_running_requests=3)
    prompts = {
        f"{i}:{name}": [*PLANTED[name], 90, i] for i, name in enumerate([*PLANTED, *PLANTED])
    }
    answers = engine.run(*(generate(rid, prompt, 6) for rid, prompt in prompts.items()))
    assert all(answers[rid].token_ids == reference(prompts[rid], 6) for rid in prompts)


def test_routing_key_follows_what_runs() -> None:
    engine = Engine(schedule_policy="routing-key", max_running_requests=4)
    running = ["x", "y", "y", None]
    engine.send(*(generate(f"run{i}", prompt_of(9, i), 40, routing_key=key)
                  for i, key in enumerate(running)))  # fmt: skip
    while len(engine.scheduler.running.reqs) < 4:
        assert engine.step()
    waiting = ["z", "x", None, "y", "x"]
    engine.send(*(generate(f"{i}:{key}", prompt_of(9, 9 + i), 2, routing_key=key)
                  for i, key in enumerate(waiting)))  # fmt: skip
    engine.step()
    queue = [req.rid for req in engine.scheduler.waiting]
    assert queue == ["3:y", "1:x", "4:x", "0:z", "2:None"]
    engine.run()
