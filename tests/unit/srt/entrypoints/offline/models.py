"""A served model whose tokenizer has a letter per token, and no weights."""

import functools
import json
import tempfile
from pathlib import Path

import tokenizers
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import BPE

from sglang.srt.core.messages import ModelCard
from sglang.srt.entrypoints.offline.requests import ServedModel

CONTEXT_LEN = 64


@functools.cache
def served(default_sampling: tuple[tuple[str, float], ...] = ()) -> ServedModel:
    from sglang_router.text import Tokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    model = tokenizers.Tokenizer(BPE({one: i for i, one in enumerate(letters)}, []))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["</s>"])
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/tokenizer.json")
        (Path(folder) / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
        tokenizer = Tokenizer(folder)
    card = ModelCard(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        vocab_size=len(letters) + 1,
        context_len=CONTEXT_LEN,
        eos_token_ids=[len(letters)],
        bos_token_id=None,
        pad_token_id=None,
        tokenizer_folder="",
        default_sampling_params={},
    )
    return ServedModel(card, tokenizer, dict(default_sampling), "v1")


def ids_of(text: str) -> list[int]:
    return list(served().tokenizer.encode(text))


EOS = served().card.vocab_size - 1
