"""Logprobs are the model's own, whatever the request does to the choice of its tokens."""

from pathlib import Path

import pytest
import torch

from sglang.srt.core.messages import LogprobRows
from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from tests.unit.srt.model_loader.tiny_gguf import TinyGguf
from tests.unit.srt.models.driver import Driver

PROMPT = [5, 80, 33, 7, 7, 12]


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    path: Path = tmp_path_factory.mktemp("model") / "m.gguf"
    return Driver(TinyGguf().write(path))


def prompt_rows(driver: Driver, **params: float) -> LogprobRows:
    sampling = SamplingParams(max_new_tokens=1, **params).normalized()  # type: ignore[arg-type]
    req = Req("r", PROMPT, sampling, return_logprob=True, logprob_start_len=0, top_logprobs_num=1)
    (rows,) = driver.extend([driver.admit(req)], logprobs=True).input_logprobs
    driver.clear()
    assert rows is not None
    return rows


def test_b130_prompt_logprobs_do_not_know_of_top_k(driver: Driver) -> None:
    wanted = []
    for end in range(1, len(PROMPT)):
        req = driver.admit(Req("r", PROMPT[:end], SamplingParams()))
        wanted.append(float(driver.logits(req).log_softmax(-1)[PROMPT[end]]))
        driver.clear()
    filtered = prompt_rows(driver, temperature=1.0, top_k=1)
    assert filtered.token_ids == PROMPT[1:]
    assert torch.allclose(torch.tensor(filtered.logprobs), torch.tensor(wanted), atol=1e-4)
    assert filtered == prompt_rows(driver, temperature=1.0)


# ------------------------------------------------------------------ each form equals the reference

CHOSEN = [3, 90]
LONG = [(7 * i * i + 3 * i + 11) % 90 for i in range(40)]


def log_softmax_after(driver: Driver, ids: list[int]) -> torch.Tensor:
    """[vocab] The distribution of the token after `ids`, computed from nothing."""
    row = driver.logits(driver.admit(Req("r", ids, SamplingParams()))).log_softmax(-1)
    driver.clear()
    return row


def reference_rows(driver: Driver, ids: list[int], first: int, last: int) -> list[torch.Tensor]:
    """One distribution for each of the tokens `first` … `last - 1`."""
    return [log_softmax_after(driver, ids[:position]) for position in range(first, last)]


def assert_rows_are(rows: LogprobRows, wanted: list[torch.Tensor], ids: list[int]) -> None:
    assert rows.token_ids == ids
    assert len(rows.logprobs) == len(rows.top) == len(rows.chosen) == len(wanted)
    for position, expected in enumerate(wanted):
        own, top, chosen = (values[position] for values in (rows.logprobs, rows.top, rows.chosen))
        assert top is not None and chosen is not None
        assert own == pytest.approx(float(expected[ids[position]]), abs=1e-4)
        best = expected.topk(3)
        assert top.token_ids == best.indices.tolist()
        assert top.logprobs == pytest.approx(best.values.tolist(), abs=1e-4)
        assert chosen.token_ids == CHOSEN
        assert chosen.logprobs == pytest.approx(expected[CHOSEN].tolist(), abs=1e-4)


def asking(prompt: list[int], start: int, **params: float) -> Req:
    sampling = SamplingParams(max_new_tokens=9, **params).normalized()  # type: ignore[arg-type]
    return Req(
        "r", prompt, sampling, return_logprob=True, logprob_start_len=start,
        top_logprobs_num=3, token_ids_logprob=CHOSEN,
    )  # fmt: skip


def run_rows(
    driver: Driver, req: Req, cached: int = 0, chunk: int = 256
) -> tuple[LogprobRows, LogprobRows]:
    """Prompt and answer rows of a request, as the scheduler's layout and planner make them."""
    if not cached:
        driver.admit(req)
    else:
        first = driver.admit(Req("first", req.origin_input_ids[: cached + 1], SamplingParams()))
        driver.extend([first])
        driver.admit(req, cached_from=first, cached=cached)
    prompt, answer = LogprobRows(), LogprobRows()
    results = []
    while not req.output_ids:
        results.append(driver.extend([req], chunk, True, req.logprob_start_len))
    results += [driver.decode([req]) for _ in range(4)]
    for result in results:
        for target, rows in (
            (prompt, result.input_logprobs[0]),
            (answer, result.output_logprobs[0]),
        ):
            if rows is not None:
                for name in ("logprobs", "token_ids", "top", "chosen"):
                    getattr(target, name).extend(getattr(rows, name))
    driver.clear()
    return prompt, answer


@pytest.mark.parametrize("chunk", [256, 7])
@pytest.mark.parametrize(("start", "cached"), [(0, 0), (10, 0), (10, 10), (39, 0), (39, 20)])
def test_every_form_equals_the_reference(
    driver: Driver, start: int, cached: int, chunk: int
) -> None:
    """Whatever is cached before `logprob_start_len`, and however the prompt is cut."""
    req = asking(LONG, start, temperature=0.8, sampling_seed=3, frequency_penalty=0.5)  # type: ignore[arg-type]
    prompt, answer = run_rows(driver, req, cached, chunk)
    ids = LONG + req.output_ids
    assert_rows_are(prompt, reference_rows(driver, ids, start + 1, len(LONG)), LONG[start + 1 :])
    assert_rows_are(answer, reference_rows(driver, ids, len(LONG), len(ids)), req.output_ids)
