"""Greedy output equals the reference in every mode (the table of `make exact`)."""

from pathlib import Path

from tests.e2e import exact


def test_every_mode_equals_the_reference(tmp_path: Path) -> None:
    modes = exact.run(tmp_path)
    failed = {mode.name: mode.wrong + mode.ties for mode in modes if not mode.passed}
    assert failed == {}
    assert [m.name for m in modes] == [
        "cold", "warm", "streamed", "batched", "logprobs", "chunked", "retracted",
    ]  # fmt: skip
