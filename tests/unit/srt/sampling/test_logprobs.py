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
