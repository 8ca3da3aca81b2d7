"""Settings of the frontend that hold for the whole process."""

from dataclasses import dataclass
from typing import Any


@dataclass
class GlobalConfig:
    """Change the fields of `sgl.global_config`; programs read them when they run."""

    # What programs run against when they are given no backend: a BaseBackend or a Runtime.
    default_backend: Any = None
    skip_special_tokens_in_output: bool = True
    spaces_between_special_tokens_in_out: bool = True
    # run_batch sends the text that all its programs begin with ahead of them.
    enable_precache_with_tracing: bool = True


global_config = GlobalConfig()
