"""`sglang bench NAME`."""

import pytest

from sglang.cli.bench import BENCHMARKS
from sglang.cli.main import main


def test_bench_needs_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "usage: sglang bench NAME" in capsys.readouterr().err
    assert main(["bench", "--help"]) == 0
    told = capsys.readouterr().out
    assert all(f"  {name} " in told for name in BENCHMARKS)


def test_unknown_benchmark_gets_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "one-batches"]) == 2
    assert "unknown benchmark 'one-batches'; did you mean one-batch?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "flag"),
    [
        ("serving", "--num-prompts"),
        ("offline-throughput", "--num-prompts"),
        ("one-batch", "--batch-size"),
        ("one-batch-server", "--batch-size"),
    ],
)
def test_benchmark_has_the_options_of_its_module(
    capsys: pytest.CaptureFixture[str], name: str, flag: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(
            ["bench", name, flag, "0", *(["--dataset-name", "random-ids"] if "num" in flag else [])]
        )
    assert caught.value.code == 2
    assert f"sglang bench {name}: error: {flag} must be at least 1" in capsys.readouterr().err
