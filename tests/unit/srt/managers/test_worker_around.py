"""The worker of a speculative algorithm stands between the scheduler and the target's worker."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from sglang.srt.managers.process import worker_around
from sglang.srt.speculative.spec_registry import _REGISTRY, register_algorithm
from sglang.srt.speculative.spec_worker import SpecWorker


@pytest.fixture(autouse=True)
def no_algorithms() -> Iterator[None]:
    _REGISTRY.clear()
    yield
    _REGISTRY.clear()


class Delegating(SpecWorker):
    def forward_batch_generation(self, batch: Any) -> Any:
        return self.target_worker.forward_batch_generation(batch)


def target() -> Any:
    return SimpleNamespace(gpu_id=3, forward_batch_generation=lambda batch: ["ran", batch])


def test_without_an_algorithm_it_is_the_target() -> None:
    worker = target()
    assert worker_around(worker, SimpleNamespace(speculative_algorithm=None)) is worker


def test_the_algorithm_s_worker_gets_options_device_and_target() -> None:
    asked: list[Any] = []

    @register_algorithm("mine")
    def factory(server_args: Any) -> type[Any]:
        asked.append(server_args)
        return Delegating

    args: Any = SimpleNamespace(speculative_algorithm="mine")
    worker: Any = worker_around(target(), args)
    assert asked == [args]
    assert (worker.server_args, worker.gpu_id) == (args, 3)
    assert worker.forward_batch_generation("batch") == ["ran", "batch"]


def test_the_interface_cannot_be_built_itself() -> None:
    with pytest.raises(TypeError, match="forward_batch_generation"):
        SpecWorker(server_args=None, gpu_id=0, target_worker=None)  # type: ignore[abstract,arg-type]


def test_a_class_that_runs_no_batches_is_named() -> None:
    class Idle:
        def __init__(self, **parts: Any) -> None:
            pass

    register_algorithm("mine")(lambda server_args: Idle)
    with pytest.raises(ValueError, match="--speculative-algorithm mine is a Idle without forward_"):
        worker_around(target(), SimpleNamespace(speculative_algorithm="mine"))
