"""The serve backends that come with this package."""

import sys
from pathlib import Path

from sglang.cli.serve_backends import (
    MODEL_TYPE_FLAG,
    SERVE_BACKENDS_GROUP,
    ServeBackend,
    ServeBackendDetection,
    ServeRequest,
)
from sglang.multimodal_gen.pipeline import INDEX_FILES, find_pipeline

NOT_SERVED = 1
HELP_FLAGS = frozenset({"-h", "--help"})
DIFFUSION_HELP = f"""usage: sglang serve FOLDER {MODEL_TYPE_FLAG} diffusion

Recognises a diffusion pipeline by its {" or ".join(INDEX_FILES)} and says what it is.
This version serves language models; a plugin with an entry point in the group
{SERVE_BACKENDS_GROUP} can serve pipelines: `sglang serve FOLDER {MODEL_TYPE_FLAG} NAME`."""


def serve_llm(request: ServeRequest) -> int:
    from sglang.srt.entrypoints import launch  # loads gRPC, which other commands do without

    return launch.main(request.argv, prog="sglang serve")


def detect_diffusion(request: ServeRequest) -> ServeBackendDetection:
    """Only local folders can be looked into; nothing is downloaded."""
    if request.model_path is None:
        return ServeBackendDetection.UNKNOWN
    path = Path(request.model_path).expanduser()
    if path.is_dir():
        is_pipeline = find_pipeline(path) is not None
        return ServeBackendDetection.MATCH if is_pipeline else ServeBackendDetection.NO_MATCH
    return ServeBackendDetection.NO_MATCH if path.exists() else ServeBackendDetection.UNKNOWN


def refuse_diffusion(request: ServeRequest) -> int:
    if HELP_FLAGS.intersection(request.argv):
        print(DIFFUSION_HELP)
        return 0
    print(
        f"sglang serve: this version serves language models, and {_what_is_in(request.model_path)};"
        f" to serve a pipeline, install a plugin with an entry point in the group "
        f"{SERVE_BACKENDS_GROUP!r} and select it with {MODEL_TYPE_FLAG} NAME.",
        file=sys.stderr,
    )
    return NOT_SERVED


def _what_is_in(model_path: str | None) -> str:
    pipeline = None if model_path is None else find_pipeline(Path(model_path).expanduser())
    if pipeline is None:
        return f"{model_path!r} is no local folder with a diffusion pipeline"
    name = pipeline.class_name or f"pipeline of diffusers {pipeline.diffusers_version}"
    return f"{model_path!r} holds a diffusion pipeline, {name!r}"


# The language-model backend finds its model in variables and config files too, and says so itself
# when there is none.
BUILTIN_BACKENDS = {
    "llm": ServeBackend(api_version=1, run=serve_llm, requires_model_path=False),
    "diffusion": ServeBackend(api_version=1, run=refuse_diffusion, detect=detect_diffusion),
}
