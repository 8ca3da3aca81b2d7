"""In deterministic mode tokens and logprobs have the same bits however they are computed."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from sglang.srt.core.messages import LogprobRows
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from tests.unit.srt.model_loader.tiny_gguf import TinyGguf
from tests.unit.srt.models.driver import Driver

LONG = [(7 * i * i + 3 * i + 11) % 90 for i in range(150)]  # more than one block of keys
NUM_TOKENS = 6


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    path: Path = tmp_path_factory.mktemp("model") / "m.gguf"
    return Driver(
        TinyGguf(context_len=256).write(path),
        attention_backend="torch_invariant",
        is_deterministic=True,
    )


@pytest.fixture
def driver(shared: Driver) -> Iterator[Driver]:
    yield shared
    shared.clear()


def asking(prompt: list[int], **options: float) -> Req:
    params = SamplingParams(temperature=0.9, top_p=0.95, **options)  # type: ignore[arg-type]
    return Req(
        "r", prompt, params.normalized(), return_logprob=True, logprob_start_len=0,
        top_logprobs_num=3, token_ids_logprob=[5],
    )  # fmt: skip


def answer_of(
    driver: Driver, req: Req, others: list[Req], chunk: int | None = None
) -> list[object]:
    """The answer with its logprobs, computed in one batch with others."""
    rows: list[LogprobRows | None] = []
    reqs = [*others, req]
    while waiting := [r for r in reqs if not r.output_ids]:
        result = driver.extend(waiting, chunk)
        if req in waiting:
            rows.append(result.output_logprobs[waiting.index(req)])
    for _ in range(NUM_TOKENS - 1):
        rows.append(driver.decode(reqs).output_logprobs[-1])
    return [req.output_ids, [row for row in rows if row is not None]]


def alone(driver: Driver, prompt: list[int], **options: float) -> list[object]:
    answer = answer_of(driver, driver.admit(asking(prompt, **options)), [])
    driver.clear()
    return answer


@pytest.mark.parametrize("num_others", [1, 2, 9])
def test_neighbours_do_not_matter(driver: Driver, num_others: int) -> None:
    wanted = alone(driver, LONG)
    others = [driver.admit(asking(LONG[i : 40 + 9 * i], top_k=5 + i)) for i in range(num_others)]
    assert answer_of(driver, driver.admit(asking(LONG)), others) == wanted


@pytest.mark.parametrize("chunk", [1, 7, 64, 128, 149])
def test_chunks_do_not_matter(driver: Driver, chunk: int) -> None:
    wanted = alone(driver, LONG)
    assert answer_of(driver, driver.admit(asking(LONG)), [], chunk) == wanted


@pytest.mark.parametrize("cached", [1, 100, 128, 149])
def test_cached_prefix_does_not_matter(driver: Driver, cached: int) -> None:
    wanted = alone(driver, LONG)
    first = driver.admit(asking(LONG[:cached] + [1]))
    driver.extend([first], 33)
    while driver.filled[first] <= cached:
        driver.extend([first], 33)
    req = driver.admit(asking(LONG), cached_from=first, cached=cached)
    assert answer_of(driver, req, []) == wanted


def test_generated_tokens_may_be_computed_again_as_a_prompt(driver: Driver) -> None:
    """What a retraction or the next turn of a talk does."""
    ids, rows = alone(driver, LONG)
    again = driver.admit(asking(LONG + list(ids)[:-1]))  # type: ignore[call-overload]
    result = driver.extend([again])
    assert again.output_ids == list(ids)[-1:]  # type: ignore[call-overload]
    assert result.output_logprobs == [list(rows)[-1]]  # type: ignore[call-overload]


def test_prompt_logprobs_have_the_same_bits_in_any_batch(driver: Driver) -> None:
    (wanted,) = driver.extend([driver.admit(asking(LONG))], logprobs=True).input_logprobs
    driver.clear()
    others = [driver.admit(asking(LONG[:9])), driver.admit(asking(LONG[3:80]))]
    rows = driver.extend([*others, driver.admit(asking(LONG))], logprobs=True).input_logprobs
    assert rows[2] == wanted


def test_answers_without_a_seed_repeat_and_differ_among_each_other(driver: Driver) -> None:
    first, second = asking(LONG), asking(LONG)
    second.answer_index = 1
    answers = []
    for req in (first, second):
        answers.append(answer_of(driver, driver.admit(req), [])[0])
        driver.clear()
    assert answers[0] == alone(driver, LONG)[0]
    assert answers[0] != answers[1]


def test_the_mode_computes_what_the_model_means(driver: Driver, tmp_path: Path) -> None:
    plain = Driver(TinyGguf(context_len=256).write(tmp_path / "m.gguf"))
    for prompt in (LONG, LONG[:3], LONG[:129]):
        greedy = [Req("r", prompt, SamplingParams(temperature=0.0).normalized()) for _ in range(2)]
        exact = driver.logits(driver.admit(greedy[0]))
        assert exact.allclose(plain.logits(plain.admit(greedy[1])), atol=1e-4)
        driver.clear()
        plain.clear()
