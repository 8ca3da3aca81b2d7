"""Modules that plugins, the command line and the launcher import stay free of heavy libraries."""

import subprocess
import sys

import pytest

HEAVY = ("torch", "triton", "transformers")
LIGHT = [
    "sglang",
    "sglang.extension.registry",
    "sglang.srt.extension_points",
    "sglang.srt.environ",
    "sglang.srt.plugins",
    "sglang.srt.speculative.spec_registry",
    "sglang.srt.server_args",
    "sglang.srt.core.messages",
    "sglang.srt.entrypoints.launch",
    "sglang.srt.entrypoints.offline.engine",
    "sglang.cli.main",
    "sglang.cli.serve_backends",
    "sglang.multimodal_gen.pipeline",
    "sglang.lang.api",
    "sglang.lang.interpreter",
    "sglang.lang.backend.runtime",
]


@pytest.mark.parametrize("module", LIGHT)
def test_import_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
