"""The options of an engine that is no server: by name, and with a model that is on disk."""

import difflib
from collections.abc import Mapping
from typing import Any

from sglang.srt.arg_groups.absent import why_absent
from sglang.srt.arg_groups.declaration import options_of
from sglang.srt.entrypoints.demo_model import ModelError
from sglang.srt.entrypoints.model_source import locate_model
from sglang.srt.entrypoints.preflight import LaunchError, check_files, check_preferred_sampling
from sglang.srt.server_args import ServerArgs, with_model_path


def options_by_name(options: Mapping[str, Any]) -> ServerArgs:
    """TypeError names an option that does not exist, or that is missing."""
    names = [option.name for option in options_of(ServerArgs)]
    for name in options:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else "docs/options-engine.md lists them"
            why = why_absent("--" + name.replace("_", "-")) or hint
            raise TypeError(f"Engine: {name} is no option of this engine; {why}")
    if "model_path" not in options:
        raise TypeError("Engine needs model_path: a folder, a GGUF file, a hub id, or `demo`")
    return ServerArgs(**{"log_level": "error", **options})


def located(args: ServerArgs) -> ServerArgs:
    """The options of a model that is on disk, checked; ValueError otherwise."""
    if not args.sealed:
        args.check_server_args()
    try:
        check_preferred_sampling(args)
        check_files(args)
        return with_model_path(args, locate_model(args, lambda *_: None))
    except (LaunchError, ModelError) as error:
        raise ValueError(str(error)) from None
