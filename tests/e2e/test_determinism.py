"""Deterministic mode gives every prompt one answer; every mode repeats a greedy one warm."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import determinism, exact, reference

TRIALS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("determinism")


@pytest.fixture(scope="module")
def deterministic(folder: Path) -> Iterator[str]:
    with exact.served(folder, determinism.DETERMINISTIC) as url:
        yield url


@pytest.mark.parametrize("test", determinism.TESTS)
def test_batches_chunks_and_cache_leave_no_trace(deterministic: str, test: str) -> None:
    answers = determinism.run_test(deterministic, test, TRIALS)
    assert [len(different) for different in answers.values()] == [1] * len(answers)


def test_deterministic_answers_are_the_model_s(deterministic: str) -> None:
    for answer in reference.load()[:3]:
        ids = determinism.greedy_ids(deterministic, answer.prompt_ids)
        assert ids == answer.output_ids[: len(ids)]


def assert_repeats(url: str) -> None:
    for answer in reference.load()[:4]:
        exact.flush(url)
        cold = determinism.greedy_ids(url, answer.prompt_ids)
        assert determinism.greedy_ids(url, answer.prompt_ids) == cold


def test_greedy_request_is_answered_alike_cold_and_warm_in_deterministic_mode(
    deterministic: str,
) -> None:
    assert_repeats(deterministic)


def test_greedy_request_is_answered_alike_cold_and_warm_by_default(folder: Path) -> None:
    with exact.served(folder) as url:
        assert_repeats(url)
