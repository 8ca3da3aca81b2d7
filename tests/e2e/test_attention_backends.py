"""A server gives the same greedy tokens whichever backend attends, in one phase or in both.

Triton's kernels run in its interpreter, step by step in Python; so the model is tiny.
"""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.e2e import processes
from tests.e2e.processes import Server

VOCAB = 64
NUM_TOKENS = 5
# The interpreter goes through the whole pool at every launch.
FLAGS = ["--dtype", "float32", "--max-total-tokens", "512", "--page-size", "4",
         "--chunked-prefill-size", "32"]  # fmt: skip
INTERPRETED = {"TRITON_INTERPRET": "1"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        initializer_range=0.4, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(WordLevel({f"w{i}": i for i in range(VOCAB)}, unk_token="w2"))
    words.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="w2", bos_token="w0", eos_token="w1"
    ).save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with processes.front_door(tmp_path_factory.mktemp("native"), *FLAGS, model=model) as server:
        yield answers(server)


def answers(server: Server) -> list[list[int]]:
    """Prompts of one batch, the longest in chunks; then the longest again, from the cache."""
    generator = random.Random(3)
    prompts = [[generator.randrange(2, VOCAB) for _ in range(length)] for length in (3, 20, 45)]
    params = {"temperature": 0, "max_new_tokens": NUM_TOKENS, "ignore_eos": True}
    ids = []
    for batch in (prompts, prompts[-1:]):
        status, replies, _ = processes.call(
            f"{server.url}/generate", {"input_ids": batch, "sampling_params": params}
        )
        assert status == 200, replies
        ids += [reply["output_ids"] for reply in replies]
    assert replies[0]["meta_info"]["cached_tokens"] >= 44
    return ids


@pytest.mark.parametrize(
    "flags",
    [
        ["--attention-backend", "triton"],
        ["--decode-attention-backend", "triton", "--triton-attention-num-kv-splits", "3"],
    ],
    ids=["triton", "torch_native then triton"],
)
def test_tokens_are_those_of_torch_native(
    flags: list[str], model: str, expected: Any, tmp_path: Path
) -> None:
    with processes.front_door(tmp_path, *FLAGS, *flags, model=model, env=INTERPRETED) as server:
        assert answers(server) == expected
    assert all(len(ids) == NUM_TOKENS for ids in expected)
