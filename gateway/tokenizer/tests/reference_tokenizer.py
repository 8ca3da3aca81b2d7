"""Writes the tests' small byte-level tokenizer, and what the reference library makes of texts.

Run it after a change below: `python gateway/tokenizer/tests/reference_tokenizer.py`.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.processors import TemplateProcessing

HERE = Path(__file__).resolve().parent
FOLDER = HERE / "fixtures" / "byte_level"
GOLDEN = HERE / "golden" / "byte_level.json"

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "The quick brown fox jumps over the lazy dog. The user says hello to the assistant.",
    "def main() -> None:\n    return the_value + other_value  # the answer is 42\n",
    "日本語のテキスト、日本の言葉。 Größe und Straße, déjà vu. 🦙🦙👩‍👩‍👧",
    "assistant user system hello world, hello there; that is the question of the day.",
]
TEXTS = [
    "",
    "Hello world",
    "  two  spaces\t\ttabs\r\n\r\nlines  ",
    "日本語テキスト 中文字符 한국어",
    "🦙👩‍👩‍👧 é\u0301 ﬁ \u200b\ufeff",
    "<|im_start|>user\nhello<|im_end|>\n",
    "a<|im_end|>b<|endoftext|><|unknown|>",
    "tool<tool_call>é</tool_call>",
    "def f(x):\n\treturn {'a': x**2, \"b\": [1, 2.5e-3]}",
    "it's I'LL we've 1234567890 $%^&*()_+",
    "\u0000\u0001\u007f\u0080\u00ad",
]


def build() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False)])
    tokenizer.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    return tokenizer


def main() -> None:
    tokenizer = build()
    FOLDER.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(FOLDER / "tokenizer.json"), pretty=False)
    cases = []
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        cases.append(
            {
                "text": text,
                "ids": ids,
                "with_special": tokenizer.encode(text).ids,
                "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                "skipped": tokenizer.decode(ids, skip_special_tokens=True),
            }
        )
    GOLDEN.write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
