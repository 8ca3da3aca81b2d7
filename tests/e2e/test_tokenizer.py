"""Tokenization equals transformers' own from the same GGUF, on 500 lines of every kind (B171)."""

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.processes import ROOT, Server, call
from tests.e2e.reference import demo_folder

LINES = 500
CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PIECES = [
    "def f(x: int) -> int:\n    return x ** 2  # square",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }",
    "SELECT * FROM t WHERE a <> 'b';",
    "東京は日本の首都であり、人口は約1400万人です。",
    "你好，世界！今天天气很好。",
    "안녕하세요, 반갑습니다.",
    "Привет, как дела?",
    "مرحبا بالعالم",
    "🎉🎊🦭👩\u200d👩\u200d👧\u200d👦🏳\ufe0f\u200d🌈",
    "naïve café — “quoted”… ½",
    "  leading and   inner   spaces\t\ttabs",
    "1234567890 3.14159 1e-10 0xDEADBEEF",
    "\n\n\n",
    "it's we've I'll don't",
    "http://example.org/a?b=c&d=%20#e",
    "ZWJ\u200dand\u00a0nbsp",
    "e\u0301 combining",
    "UPPER lower MiXeD_snake-kebab",
]
REFERENCE = """
import json, sys, transformers
folder, lines = sys.argv[1], json.load(open(sys.argv[2]))
import pathlib
gguf = next(pathlib.Path(folder).glob("*.gguf")).name
tokenizer = transformers.AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
print(json.dumps([tokenizer(line, add_special_tokens=False)["input_ids"] for line in lines]))
"""


def lines() -> list[str]:
    """Lines of files of this repository, and mixtures of code, CJK, emoji and control tokens."""
    dice = random.Random(11)
    files = ["README.md", "Makefile", "tests/e2e/processes.py", "gateway/server/src/app.rs"]
    made = [
        line for name in files for line in (ROOT / name).read_text().splitlines() if line.strip()
    ]
    made = dice.sample(made, 250) + PIECES + CONTROL
    while len(made) < LINES:
        parts = dice.choices(PIECES + CONTROL, k=dice.randint(2, 4))
        made.append(dice.choice(["", " ", "\n"]).join(parts))
    return made


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    listed = tmp_path_factory.mktemp("lines") / "lines.json"
    listed.write_text(json.dumps(lines()))
    done = subprocess.run(
        [sys.executable, "-c", REFERENCE, str(demo_folder()), str(listed)],
        capture_output=True, text=True, check=True, timeout=600,
    )  # fmt: skip
    return list(json.loads(done.stdout.strip().splitlines()[-1]))


def test_the_server_tokenizes_as_the_reference_does(
    server: Server, reference: list[list[int]]
) -> None:
    body = {"prompt": lines(), "add_special_tokens": False}
    status, reply, _ = call(f"{server.url}/tokenize", body)
    assert status == 200, reply
    wrong = [
        (line, got, want)
        for line, got, want in zip(lines(), reply["tokens"], reference, strict=True)
        if got != want
    ]
    assert wrong == []


def test_the_text_library_decodes_what_it_encodes(reference: list[list[int]]) -> None:
    from sglang_router.text import Tokenizer

    tokenizer = Tokenizer(str(Path(demo_folder())))
    for line, ids in zip(lines(), reference, strict=True):
        assert tokenizer.encode(line, False) == ids
        assert tokenizer.decode(ids, False) == line
