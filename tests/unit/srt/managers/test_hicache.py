"""Answers with a host tier and storage below a tiny pool equal those of a run without a cache."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from sglang.srt.core.messages import AbortInput, ControlInput
from sglang.srt.environ import envs
from tests.unit.srt.managers.engine import (
    Cache,
    Engine,
    generate,
    prompt_of,
    reference,
)

HOST = Cache(hicache_ratio=2.0)
POLICIES = ["write_through", "write_through_selective", "write_back"]


def test_a_prefix_that_was_evicted_comes_from_the_host() -> None:
    engine = Engine(pool=128, page_size=4, cache=HOST)
    first = engine.ask(prompt_of(64), 4)
    engine.ask(prompt_of(100, seed=1), 4)
    second = engine.ask(prompt_of(64), 4)
    assert first.token_ids == second.token_ids == reference(prompt_of(64), 4)
    assert first.last.cached_tokens == 0
    assert second.last.cached_tokens == 60
    assert second.last.cached_tokens_details == {"device": 0, "host": 60, "storage": 0}
    third = engine.ask(prompt_of(64), 4)
    assert third.last.cached_tokens_details == {"device": 60, "host": 0, "storage": 0}


def test_without_a_host_tier_details_name_the_device() -> None:
    engine = Engine()
    engine.ask(prompt_of(64), 4)
    details = engine.ask(prompt_of(64), 4).last.cached_tokens_details
    assert details == {"device": 63, "host": 0, "storage": 0}


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_random_traffic(page_size: int, policy: str, ratio: float) -> None:
    storm(page_size, replace(HOST, hicache_write_policy=policy, hicache_ratio=ratio))


@pytest.mark.parametrize("policy", POLICIES)
def test_random_traffic_in_mixed_passes(policy: str) -> None:
    storm(4, replace(HOST, hicache_write_policy=policy), mixed_chunk=True)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("prefetch", ["best_effort", "wait_complete", "timeout"])
def test_random_traffic_with_storage(policy: str, prefetch: str, tmp_path: Path) -> None:
    cache = replace(
        HOST,
        hicache_ratio=1.0,
        hicache_write_policy=policy,
        hicache_storage_backend="file",
        hicache_storage_prefetch_policy=prefetch,
        hicache_storage_backend_extra_config='{"prefetch_threshold": 16}',
    )
    with envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.override(tmp_path):
        storm(4, cache)


def storm(page_size: int, cache: Cache, **options: object) -> None:
    """Requests that share prefixes, in a pool that holds few of them, some of them aborted."""
    rng = random.Random(f"{page_size} {cache}")
    engine = Engine(
        pool=384,
        page_size=page_size,
        context=300,
        cache=cache,
        chunked_prefill_size=64,
        max_running_requests=6,
        schedule_conservativeness=0.02,
        **options,
    )
    bases = [prompt_of(96, seed=1000 + i) for i in range(4)]
    wanted: dict[str, tuple[list[int], int]] = {}
    for i in range(90):
        prompt = rng.choice(bases)[: rng.randrange(97)] + prompt_of(rng.randrange(1, 40), i % 7)
        count = rng.choice([0, 1, 2, 20, 90])
        wanted[f"r{i}"] = (prompt, count)
        engine.send(generate(f"r{i}", prompt, count, extra_key=rng.choice([None, None, "k"])))
        for _ in range(rng.randrange(8)):
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
    # A host smaller than the pool, written through, has little that the pool has not.
    loads = cache.hicache_ratio != 0.5 or cache.hicache_write_policy == "write_back"
    assert not loads or engine.memory.tree_cache.counters.num_loaded_back_tokens > 0
    assert engine.memory.tree_cache.counters.num_evicted_tokens > 384
    engine.memory.host_tier.close()


# ------------------------------------------------------------------ storage


@pytest.fixture
def folder(tmp_path: Path):  # type: ignore[no-untyped-def]
    with envs.SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR.override(tmp_path):
        yield tmp_path


FILES = replace(
    HOST,
    hicache_storage_backend="file",
    hicache_storage_backend_extra_config='{"prefetch_threshold": 32}',
)


def test_another_engine_finds_what_was_stored(folder: Path) -> None:
    first = Engine(page_size=4, cache=FILES)
    first.ask(prompt_of(64), 4)
    first.memory.host_tier.close()
    assert len(list(folder.glob("*.bin"))) == 16
    second = Engine(page_size=4, cache=FILES)
    answer = second.ask(prompt_of(64), 4)
    assert answer.token_ids == reference(prompt_of(64), 4)
    assert answer.last.cached_tokens_details == {"device": 0, "host": 0, "storage": 60}
    assert second.memory.tree_cache.counters.num_prefetched_tokens == 60
    other = second.ask(prompt_of(64), 4, extra_key="other")
    assert other.last.cached_tokens == 0
    second.memory.host_tier.close()


def test_storage_is_attached_and_detached_while_the_engine_runs(folder: Path) -> None:
    engine = Engine(page_size=4, cache=HOST)

    def control(name: str, **args: object) -> dict[str, object]:
        engine.send(ControlInput(id=len(engine.controls()), name=name, args=args))
        output = engine.controls()[-1]
        assert output.error is None
        return output.result

    assert control("hicache_storage_status")["hicache_storage_backend"] is None
    assert control("hicache_storage_detach")["success"] is False
    attached = control(
        "hicache_storage_attach",
        hicache_storage_backend="file",
        hicache_storage_backend_extra_config_json='{"prefetch_threshold": 16}',
        hicache_storage_prefetch_policy="wait_complete",
        hicache_write_policy="write_through",
    )
    assert attached == {"success": True, "message": "The storage backend 'file' is attached."}
    again = control("hicache_storage_attach", hicache_storage_backend="file")
    assert again["success"] is False and "detach it first" in str(again["message"])
    engine.ask(prompt_of(64), 4)
    assert control("hicache_storage_detach")["success"] is True
    assert len(list(folder.glob("*.bin"))) == 16
    engine.ask(prompt_of(64, seed=1), 4)
    assert len(list(folder.glob("*.bin"))) == 16
    assert control("hicache_storage_attach", hicache_storage_backend="file")["success"] is True
    assert control("hicache_storage_clear")["success"] is True
    assert list(folder.iterdir()) == []
    status = control("hicache_storage_status")
    assert status["storage"] == {"folder": str(folder), "num_pages": 0, "num_bytes": 0}
    engine.memory.host_tier.close()


@pytest.mark.parametrize(
    "args,text",
    [
        ({}, "hicache_storage_backend must be the name of a backend"),
        ({"backend": "file"}, "unknown argument 'backend'; allowed: hicache_storage_backend"),
        ({"hicache_storage_backend": 3}, "hicache_storage_backend must be text, got 3"),
    ],
)
def test_bad_arguments_are_named(args: dict[str, object], text: str) -> None:
    engine = Engine(cache=HOST)
    engine.send(ControlInput(id=1, name="hicache_storage_attach", args=args))
    assert text in (engine.controls()[-1].error or "")


@pytest.mark.parametrize(
    "args,text",
    [
        ({"hicache_storage_backend": "mooncake"}, "Unknown storage backend 'mooncake'"),
        (
            {"hicache_storage_backend": "file", "hicache_storage_prefetch_policy": "never"},
            "must be one of best_effort, wait_complete, timeout; got 'never'",
        ),
        (
            {"hicache_storage_backend": "file", "hicache_write_policy": "never"},
            "must be one of write_through, write_through_selective, write_back; got 'never'",
        ),
        (
            {
                "hicache_storage_backend": "file",
                "hicache_storage_backend_extra_config_json": '{"prefetch_threshold": "many"}',
            },
            "prefetch_threshold must be a number, 0 or more; got 'many'",
        ),
    ],
)
def test_what_cannot_be_attached_is_refused(
    args: dict[str, object], text: str, folder: Path
) -> None:
    engine = Engine(cache=HOST)
    engine.send(ControlInput(id=1, name="hicache_storage_attach", args=args))
    result = engine.controls()[-1].result
    assert result["success"] is False and text in str(result["message"])


def test_without_a_host_tier_storage_is_refused() -> None:
    engine = Engine()
    engine.send(ControlInput(id=1, name="hicache_storage_status"))
    assert "--enable-hierarchical-cache" in (engine.controls()[-1].error or "")


def test_a_folder_that_is_gone_ends_nothing(folder: Path) -> None:
    engine = Engine(page_size=4, cache=FILES)
    folder.rmdir()
    engine.send(ControlInput(id=1, name="hicache_storage_status"))
    assert "FileNotFoundError" in str(engine.controls()[-1].result["storage"])
    engine.send(ControlInput(id=2, name="hicache_storage_clear"))
    assert engine.controls()[-1].result["success"] is False
    assert len(engine.ask(prompt_of(64), 4).token_ids) == 4
    engine.memory.host_tier.close()


def test_a_flush_forgets_the_host_and_keeps_storage(folder: Path) -> None:
    engine = Engine(page_size=4, cache=FILES)
    engine.ask(prompt_of(64), 4)
    engine.send(ControlInput(id=1, name="hicache_storage_detach"))  # waits for the writer
    engine.send(ControlInput(id=2, name="flush_cache"))
    assert engine.memory.tree_cache.num_host_tokens == 0  # type: ignore[attr-defined]
    again = {
        "hicache_storage_backend": "file",
        "hicache_storage_backend_extra_config_json": FILES.hicache_storage_backend_extra_config,
        "hicache_storage_prefetch_policy": "wait_complete",
    }
    engine.send(ControlInput(id=3, name="hicache_storage_attach", args=again))
    answer = engine.ask(prompt_of(64), 4)
    assert answer.last.cached_tokens_details == {"device": 0, "host": 0, "storage": 60}
    engine.memory.host_tier.close()
