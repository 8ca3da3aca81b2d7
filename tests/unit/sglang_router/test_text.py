"""`sglang_router.text` against the tokenizer library that it stands in for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from sglang_router import text

TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if tools %}[{{ tools[0].name }}]{% endif %}"
    "{% if add_generation_prompt %}<|assistant|>{% if calm %}calm{% endif %}{% endif %}"
)
SAMPLES = ["Hello world", " leading and  double ", "Grüße, 世界 🌍!", "a\n\nb\tc", ""]


def byte_level_model(folder: Path) -> tokenizers.Tokenizer:
    """A byte-level model with a few merges, written to `folder` in the hub's layout."""
    vocab = {
        letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))
    }
    merges = [("l", "l"), ("ll", "o"), ("H", "e"), ("Ġ", "w"), ("o", "r")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    model = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = decoders.ByteLevel()
    model.add_special_tokens(["<s>", "</s>"])
    start = model.token_to_id("<s>")
    model.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", start)]
    )
    model.save(str(folder / "tokenizer.json"))
    config = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return model


@pytest.fixture
def reference(tmp_path: Path) -> tokenizers.Tokenizer:
    return byte_level_model(tmp_path)


@pytest.fixture
def tokenizer(reference: tokenizers.Tokenizer, tmp_path: Path) -> text.Tokenizer:
    return text.Tokenizer.from_dir(tmp_path)


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("special", [True, False])
def test_encode_and_decode_equal_the_reference(
    tokenizer: text.Tokenizer, reference: tokenizers.Tokenizer, sample: str, special: bool
) -> None:
    ids = tokenizer.encode(sample, add_special_tokens=special)
    assert ids == reference.encode(sample, add_special_tokens=special).ids
    assert tokenizer.decode(ids) == reference.decode(ids) == sample
    kept = tokenizer.decode(ids, skip_special_tokens=False)
    assert kept == reference.decode(ids, skip_special_tokens=False)


def test_a_tokenizer_from_contents_equals_one_from_a_folder(
    tokenizer: text.Tokenizer, tmp_path: Path
) -> None:
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = text.Tokenizer.from_files(files)
    assert other.encode("Hello world") == tokenizer.encode("Hello world")
    assert other.has_chat_template


def test_facts_of_the_vocabulary(
    tokenizer: text.Tokenizer, reference: tokenizers.Tokenizer
) -> None:
    end = reference.token_to_id("</s>")
    assert tokenizer.vocab_size == reference.get_vocab_size()
    assert tokenizer.token_to_id("</s>") == end
    assert tokenizer.token_to_id("absent") is None
    assert tokenizer.eos_token_ids == [end]
    assert tokenizer.is_special(end) and not tokenizer.is_special(0)


def test_token_bytes_join_to_the_text(tokenizer: text.Tokenizer) -> None:
    sample = "Grüße, 世界 🌍"
    ids = tokenizer.encode(sample, add_special_tokens=False)
    assert b"".join(map(tokenizer.token_bytes, ids)) == sample.encode()


def test_streamed_text_equals_the_whole_and_is_never_taken_back(tokenizer: text.Tokenizer) -> None:
    sample = "Hello 世界 🌍 world"
    decoder = tokenizer.decoder()
    pieces = [decoder.push(token) for token in tokenizer.encode(sample)]
    assert all("\N{REPLACEMENT CHARACTER}" not in piece for piece in pieces)
    assert "".join(pieces) + decoder.flush() == sample


def test_a_stop_string_is_found_across_pieces() -> None:
    matcher = text.StopMatcher(stop=["END"])
    given = [matcher.push(piece) for piece in ("one E", "N", "D two")]
    assert "".join(progress.text for progress in given) == "one "
    assert [progress.matched for progress in given] == [None, None, "END"]


def test_text_that_only_began_like_a_stop_is_given_out_at_the_end() -> None:
    matcher = text.StopMatcher(stop=["END"], stop_regex=["[0-9]{3}!"])
    assert matcher.push("12 EN").text + matcher.flush() == "12 EN"
    assert matcher.matched is None


def test_the_end_of_the_text_can_be_a_stop_and_nothing_follows_it() -> None:
    matcher = text.StopMatcher(stop_regex=["[0-9]+$"])
    assert matcher.push("ab 12").text + matcher.flush() == "ab "
    assert matcher.matched == "[0-9]+$"
    held = text.StopMatcher(stop=["END"])
    assert held.push("one EN").text + held.flush() == "one EN"
    for call in (lambda: held.push("D"), held.flush):
        with pytest.raises(text.TextError, match="make a new StopMatcher"):
            call()


def test_a_stop_is_kept_when_asked_for() -> None:
    assert text.StopMatcher(["END"], no_stop_trim=True).push("one END two").text == "one END"


def test_a_template_gets_messages_tools_and_keywords(tokenizer: text.Tokenizer) -> None:
    messages = [{"role": "user", "content": "Grüße"}]
    assert tokenizer.apply_chat_template(messages) == "<|user|>Grüße</s><|assistant|>"
    prompt = tokenizer.apply_chat_template(messages, tools=[{"name": "clock"}], calm=True)
    assert prompt == "<|user|>Grüße</s>[clock]<|assistant|>calm"
    closed = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert closed == "<|user|>Grüße</s>"
    continued = tokenizer.apply_chat_template(messages, continue_final_message=True)
    assert continued == "<|user|>Grüße"


def test_failures_are_text_errors_that_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(text.TextError, match="no tokenizer.json in"):
        text.Tokenizer.from_dir(tmp_path)
    with pytest.raises(ValueError, match="stop_regex"):
        text.StopMatcher(stop_regex=["("])
    (tmp_path / "tokenizer_config.json").write_text("{}")
    byte_level_model(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(text.TextError, match="no chat template"):
        text.Tokenizer.from_dir(tmp_path).apply_chat_template([])


def test_what_is_no_json_is_refused_by_pythons_own_error(tokenizer: text.Tokenizer) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        tokenizer.apply_chat_template([object()])


def test_the_import_is_cheap() -> None:
    """No parser, network or process module comes with it, and it takes milliseconds."""
    code = f"""
import sys, time
sys.path[:] = {sys.path!r}
start = time.perf_counter()
import sglang_router.text
seconds = time.perf_counter() - start
print(seconds, *[m for m in ("argparse", "subprocess", "socket", "json") if m in sys.modules])
"""
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, *modules = done.stdout.split()
    assert modules == []
    assert float(seconds) < 1.0
