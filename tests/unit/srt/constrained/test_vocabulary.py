"""Tokens are the bytes that they add to an answer, in each kind of vocabulary."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang.srt.constrained.llguidance_backend import create_guidance_backend
from sglang.srt.constrained.vocabulary import TokenVocabulary
from sglang.srt.constrained.xgrammar_backend import create_xgrammar_backend
from sglang_router.text import Tokenizer

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = ["<unk>", "<s>", "</s>", *BYTES, "▁", "a", "b", "▁a", "▁b", "é", "12", "<tool>"]
SPECIAL = {"<unk>": 0, "<s>": 1, "</s>": 2}


def sentence_pieces(folder: Path) -> Tokenizer:
    """BPE on characters, spaces as `▁`, and bytes for what is unknown."""
    added = [
        {"id": id, "content": text, "special": True, "single_word": False, "lstrip": False,
         "rstrip": False, "normalized": False}
        for text, id in SPECIAL.items()
    ]  # fmt: skip
    files: dict[str, Any] = {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
            "pre_tokenizer": None, "post_processor": None,
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
            ]},
            "model": {
                "type": "BPE", "dropout": None, "unk_token": "<unk>", "fuse_unk": True,
                "continuing_subword_prefix": None, "end_of_word_suffix": None,
                "byte_fallback": True, "vocab": {piece: id for id, piece in enumerate(PIECES)},
                "merges": ["▁ a", "▁ b"],
            },
        },
        "config.json": {"eos_token_id": 2},
    }  # fmt: skip
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return Tokenizer(folder)


def test_pieces_bytes_and_special_tokens(tmp_path: Path) -> None:
    vocabulary = TokenVocabulary.of(sentence_pieces(tmp_path), len(PIECES) + 5, {2})
    by_piece = dict(zip(PIECES, vocabulary.tokens, strict=False))
    assert by_piece["▁a"] == b" a"
    assert by_piece["é"] == "é".encode()
    assert by_piece["<0xC3>"] == b"\xc3"
    assert [by_piece[piece] for piece in SPECIAL] == [b"", b"", b""]
    assert vocabulary.tokens[len(PIECES) :] == (b"",) * 5
    assert vocabulary.end_ids == (2,)
    assert 2 in vocabulary.usable_ids
    assert 1 not in vocabulary.usable_ids


def test_rows_that_the_model_lacks_are_left_out(tmp_path: Path) -> None:
    vocabulary = TokenVocabulary.of(sentence_pieces(tmp_path), 100, {2, 99, 5000})
    assert vocabulary.vocab_size == 100
    assert vocabulary.end_ids == (2, 99)


def test_without_an_end_token_no_constraint_can_end(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="names none below its vocabulary size"):
        TokenVocabulary.of(sentence_pieces(tmp_path), 2, {2})


@pytest.mark.parametrize("create", [create_xgrammar_backend, create_guidance_backend])
def test_answers_of_pieces_and_bytes(create: Any, tmp_path: Path) -> None:
    tokenizer = sentence_pieces(tmp_path)
    size = len(PIECES) + 5
    backend = create(object(), tokenizer, size, None)
    try:
        grammar = backend.compile_grammar("regex", "a ü b12é")
    finally:
        backend.close()
    mask = grammar.allocate_vocab_mask(size, 1, "cpu")
    ids = tokenizer.encode("a ü b12é", add_special_tokens=False)
    assert len(ids) < len("a ü b12é".encode())
    for token in ids:
        assert not grammar.is_terminated()
        grammar.fill_vocab_mask(mask, 0)
        assert int(mask[0, token // 32]) >> (token % 32) & 1, PIECES[token]
        grammar.accept_token(token)
    assert grammar.is_terminated()


def test_xgrammar_has_no_pattern_of_white_space(tmp_path: Path) -> None:
    class Options:
        constrained_json_whitespace_pattern = " ?"

    with pytest.raises(ValueError, match="--grammar-backend llguidance"):
        create_xgrammar_backend(Options(), sentence_pieces(tmp_path), len(PIECES), None)
