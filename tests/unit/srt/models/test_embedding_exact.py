"""The vector of a prompt is the last hidden state of transformers' model, of length 1."""

import random
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sglang.srt.core.request import Req
from sglang.srt.core.sampling_params import SamplingParams
from sglang.srt.managers.batch_layout import prefill_batch
from sglang.srt.managers.tp_worker import TpModelWorker
from sglang.srt.server_args import ServerArgs
from tests.unit.srt.models.reference import VOCAB_SIZE
from tests.unit.srt.models.test_llama_exact import save_reference


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("embedding")
    return folder, save_reference(folder, max_position_embeddings=128)


@pytest.fixture(scope="module")
def worker(model: tuple[Path, PreTrainedModel]) -> TpModelWorker:
    args = ServerArgs(
        model_path=str(model[0]), dtype="float32", is_embedding=True, max_total_tokens=1024
    )
    args.check_server_args()
    return TpModelWorker(args)


def prompts() -> list[list[int]]:
    draw = random.Random(11)
    return [[draw.randrange(VOCAB_SIZE) for _ in range(length)] for length in (1, 5, 40, 100)]


def reference_vector(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        state = model.model(torch.tensor([ids])).last_hidden_state[0, -1]
    return state / state.norm()


def pass_over(
    worker: TpModelWorker, reqs: list[Req], prefix_lens: list[int], new_lens: list[int]
) -> list[list[float]]:
    table = worker.memory.req_to_token_pool
    table.alloc(reqs)
    slots = worker.memory.token_to_kv_pool_allocator.alloc(sum(new_lens))
    for req, prefix, part in zip(reqs, prefix_lens, torch.split(slots, new_lens), strict=True):
        req.kv_committed_len = prefix + len(part)
        table.write((req.req_pool_idx, slice(prefix, req.kv_committed_len)), part)
    result = worker.forward_batch_generation(prefill_batch(reqs, new_lens, slots))
    assert result.embeddings is not None
    return result.embeddings


def embedding_req(ids: list[int]) -> Req:
    params = SamplingParams(max_new_tokens=0).normalized()
    return Req("r", ids, params, wants_embedding=True)


def test_vectors_of_a_batch_equal_the_references(
    worker: TpModelWorker, model: tuple[Path, PreTrainedModel]
) -> None:
    reqs = [embedding_req(ids) for ids in prompts()]
    lens = [req.seq_len for req in reqs]
    vectors = pass_over(worker, reqs, [0] * len(reqs), lens)
    for req, vector in zip(reqs, vectors, strict=True):
        want = reference_vector(model[1], req.origin_input_ids)
        assert torch.allclose(torch.tensor(vector), want, atol=1e-5)


def test_the_last_chunk_of_a_prompt_gives_its_vector(
    worker: TpModelWorker, model: tuple[Path, PreTrainedModel]
) -> None:
    req = embedding_req(prompts()[3])
    pass_over(worker, [req], [0], [60])
    (vector,) = pass_over(worker, [req], [60], [40])
    want = reference_vector(model[1], req.origin_input_ids)
    assert torch.allclose(torch.tensor(vector), want, atol=1e-5)


def test_a_model_without_logits_processor_is_refused(
    monkeypatch: pytest.MonkeyPatch, model: tuple[Path, PreTrainedModel]
) -> None:
    from sglang.srt.model_executor import model_runner

    monkeypatch.setattr(model_runner, "load_model", lambda *_, **__: torch.nn.Linear(2, 2))
    args = ServerArgs(model_path=str(model[0]), is_embedding=True, max_total_tokens=64)
    with pytest.raises(ValueError, match="--is-embedding: Linear has no logits_processor"):
        TpModelWorker(args)
