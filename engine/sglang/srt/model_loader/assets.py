"""The text side of a model as a folder: tokenizer, chat template and configuration files.

`python -m sglang.srt.model_loader.assets MODEL FOLDER` writes them; MODEL is a .gguf file or a
folder without tokenizer.json.
"""

import hashlib
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sglang.srt.configs.gguf_file import GgufFile
from sglang.srt.configs.hf_config import config_json, named_ids
from sglang.srt.configs.model_config import ModelConfig, locate_model
from sglang.srt.environ import envs
from sglang.srt.model_loader.gguf_tokenizer import (
    is_convertible,
    tokenizer_config,
    tokenizer_json,
)

logger = logging.getLogger(__name__)

TOKENIZER_FILE = "tokenizer.json"


class AssetsError(ValueError):
    """The files cannot be made; the text says of what, and what to do."""


def ensure_assets(source: Path) -> Path:
    """A folder with tokenizer.json, tokenizer_config.json, config.json and, if the model has them,
    chat_template.jinja and generation_config.json.

    A folder that has tokenizer.json is used as it is, also for the .gguf file in it. For anything
    else the files are made once and kept in the cache folder. Safe to call from many processes.
    Raises AssetsError.
    """
    if (source / TOKENIZER_FILE).is_file():
        return source
    model = locate_model(source)
    if model.is_file() and _is_alone(model) and (model.parent / TOKENIZER_FILE).is_file():
        return model.parent
    target = envs.SGLANG_CACHE_DIR.get() / "tokenizers" / _identity(model)
    if not (target / TOKENIZER_FILE).is_file():
        _make_apart(model, target)
    return target


def write_assets(model: Path, folder: Path) -> None:
    """Writes the files of a model into an existing folder. Raises AssetsError."""
    if model.is_dir():
        _convert_with_transformers(model, folder)
        for name in ("config.json", "generation_config.json", "chat_template.jinja"):
            if (model / name).is_file() and not (folder / name).is_file():
                (folder / name).write_bytes((model / name).read_bytes())
        return
    file = GgufFile(model)
    config = ModelConfig.from_path(model)
    if is_convertible(file):
        _write_json(folder / "tokenizer_config.json", tokenizer_config(file, config.context_len))
        _write_json(folder / TOKENIZER_FILE, tokenizer_json(file))
    else:
        _convert_with_transformers(model.parent, folder, gguf_file=model.name)
    template = file.text("tokenizer.chat_template")
    if template:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    _write_json(folder / "config.json", config_json(config))
    _write_json(folder / "generation_config.json", named_ids(config))


def _is_alone(model: Path) -> bool:
    """Whether the files beside a GGUF file can only be its own."""
    return list(model.parent.glob("*.gguf")) == [model]


def _identity(model: Path) -> str:
    """Changes when the model does: its path, and the sizes and times of its files."""
    files = sorted(model.glob("*")) if model.is_dir() else [model]
    facts = [str(model.resolve())]
    facts += [f"{f.name} {f.stat().st_size} {f.stat().st_mtime_ns}" for f in files if f.is_file()]
    return f"{model.stem}-{hashlib.sha256(chr(10).join(facts).encode()).hexdigest()[:16]}"


def _make_apart(model: Path, target: Path) -> None:
    # In a process of its own: transformers, where it is needed, would stay in this one's memory.
    logger.info("Writing the tokenizer of %s to %s.", model.name, target)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "sglang.srt.model_loader.assets", str(model), str(made)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines() or ["no message"]
            raise AssetsError(lines[-1])
        try:
            made.rename(target)
        except OSError:
            # Another process was first; its files are the same.
            if not (target / TOKENIZER_FILE).is_file():
                raise


def _convert_with_transformers(source: Path, target: Path, **options: Any) -> None:
    # Imported here: it takes seconds and is needed once per model.
    from transformers import AutoTokenizer

    advice = "Put a tokenizer.json beside the weights, or name its folder with --tokenizer-path."
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(source), use_fast=True, **options)
        tokenizer.save_pretrained(str(target))
    except (OSError, ValueError, ImportError, KeyError, AttributeError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise AssetsError(
            f"{source} has no {TOKENIZER_FILE} and none can be made of it: {reason} {advice}"
        ) from error
    if not (target / TOKENIZER_FILE).is_file():
        raise AssetsError(
            f"{source} has no {TOKENIZER_FILE}, and its {type(tokenizer).__name__} cannot be "
            f"written as one. {advice}"
        )


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")


def main(arguments: list[str]) -> int:
    """Exit code; the last line on stderr says what is wrong."""
    if len(arguments) != 2:
        print("usage: python -m sglang.srt.model_loader.assets MODEL FOLDER", file=sys.stderr)
        return 2
    model, folder = map(Path, arguments)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_assets(locate_model(model), folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
