"""Runs the kernels in Triton's interpreter, so without a GPU.

Triton reads TRITON_INTERPRET when it is imported, for its own library too; so the cases run in
processes of their own and leave other tests alone.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.budgets import ROOT

CASES = sorted(Path(__file__).parent.glob("*_cases.py"))


@pytest.mark.parametrize("cases", CASES, ids=lambda path: path.stem)
def test_kernels_equal_their_twins(cases: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout


def test_modules_of_kernels_import_without_triton() -> None:
    code = (
        "import sys; sys.modules['triton'] = None\n"
        "import sglang.kernels.rms_norm, sglang.kernels.silu_and_mul, sglang.kernels.rotary\n"
        "import sglang.srt.layers.attention.triton_backend, sglang.srt.models.llama\n"
        "print('imported')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "imported", done.stderr
