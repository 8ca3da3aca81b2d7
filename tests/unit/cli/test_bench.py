"""`sglang bench serving`."""

import pytest

from sglang.cli.main import main


def test_bench_needs_to_know_what(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert main(["bench", "nothing"]) == 2
    assert "usage: sglang bench serving" in capsys.readouterr().err
    assert main(["bench", "--help"]) == 0
    assert "usage: sglang bench serving" in capsys.readouterr().out


def test_bench_serving_has_the_options_of_the_module(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["bench", "serving", "--num-prompts", "0", "--dataset-name", "random-ids"])
    assert ended.value.code == 2
    assert (
        "sglang bench serving: error: --num-prompts must be at least 1" in capsys.readouterr().err
    )
