"""From what the user calls a model to its place on this machine's disk."""

import re
from pathlib import Path

from sglang.srt.entrypoints.demo_model import DEMO, ModelError, Progress, ensure_demo
from sglang.srt.server_args import ServerArgs

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt"]


def locate_model(args: ServerArgs, progress: Progress) -> str:
    """A folder or file that exists. Downloads what is not there yet; raises ModelError."""
    return _locate(args.model_path, args.download_dir, progress)


def _locate(name: str, download_dir: str | None, progress: Progress) -> str:
    path = Path(name).expanduser()
    if path.exists():
        return str(path)
    if name == DEMO:
        return str(ensure_demo(progress))
    if not HUB_ID.fullmatch(name) or name.startswith(".") or name.endswith(".gguf"):
        raise ModelError(
            f"model path {name!r} does not exist; allowed: a folder, a GGUF file, a hub id "
            "(org/name), or `demo`"
        )
    return _download_from_hub(name, download_dir, progress)


def _download_from_hub(name: str, download_dir: str | None, progress: Progress) -> str:
    from huggingface_hub import snapshot_download

    progress(f"downloading {name} from the hub", 0, 0)
    try:
        return snapshot_download(name, cache_dir=download_dir, allow_patterns=HUB_FILES)
    except (OSError, ValueError) as error:
        first_line = str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
        raise ModelError(
            f"model {name!r} is no local path, and the hub does not give it: {first_line}"
        ) from error
