"""The benchmark of one batch, on a tiny random model."""

import json
import os
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from sglang.benchmark.one_batch import OneBatchOptions, Result, answers, main
from sglang.benchmark.static_worker import StaticWorker
from sglang.srt.server_args import ServerArgs
from tests.unit.srt.models.test_llama_exact import save_reference


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("one-batch")
    return folder, save_reference(folder, max_position_embeddings=128)


def flags(model: tuple[Path, PreTrainedModel], *more: str) -> list[str]:
    return ["--model-path", str(model[0]), "--dtype", "float32", "--max-total-tokens", "512", *more]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run chooses how threads wait; tests after it shall not."""
    monkeypatch.setattr(os, "environ", os.environ.copy())


def test_every_shape_gets_its_lines_and_its_record(
    model: tuple[Path, PreTrainedModel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.jsonl"
    argv = flags(model, "--batch-size", "1", "3", "--input-len", "20", "--output-len", "5",
                 "--run-name", "mine", "--result-filename", str(out),
                 "--log-decode-step", "2")  # fmt: skip
    assert main(argv) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(r["run_name"], r["batch_size"], r["input_len"]) for r in records] == [
        ("mine", 1, 20), ("mine", 3, 20),
    ]  # fmt: skip
    for record in records:
        assert 0 < record["prefill_latency"] < record["total_latency"]
        assert record["median_decode_throughput"] * record["median_decode_latency"] == (
            pytest.approx(record["batch_size"])
        )
    told = capsys.readouterr().out
    assert told.count("Prefill. latency:") == told.count("Decode. median. latency:") == 2
    assert told.count("Decode 2. Batch size: 3.") == 1


def test_answers_are_those_of_the_reference_whole_and_cut(
    model: tuple[Path, PreTrainedModel],
) -> None:
    args = ServerArgs(model_path=str(model[0]), dtype="float32", max_total_tokens=512)
    args.check_server_args()
    worker = StaticWorker(args)
    prompts = [[5, 6, 7, 8, 9, 10], [20, 21, 22], [40]]
    whole = answers(worker, prompts, None)
    assert answers(worker, prompts, 2) == whole
    for ids, got in zip(prompts, whole, strict=True):
        given = torch.tensor([ids])
        want = model[1].generate(
            given, attention_mask=torch.ones_like(given), do_sample=False,
            max_new_tokens=len(got), pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
        assert got == want[0, len(ids) :].tolist()


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--input-len", "200"], "the model's context has 128"),
        (["--batch-size", "99"], "raise --max-running-requests"),
        (["--batch-size", "8", "--input-len", "100"], "raise --max-total-tokens"),
    ],
)
def test_batch_that_does_not_fit_is_refused(
    model: tuple[Path, PreTrainedModel],
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    text: str,
) -> None:
    assert main(flags(model, "--input-len", "20", *more)) == 1
    assert text in capsys.readouterr().err


def test_trace_is_written(
    model: tuple[Path, PreTrainedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    argv = flags(model, "--input-len", "8", "--output-len", "2", "--profile",
                 "--result-filename", "")  # fmt: skip
    assert main(argv) == 0
    trace = json.loads((tmp_path / "default-batch1-in8-out2.trace.json").read_text())
    assert trace["traceEvents"]
    assert not (tmp_path / "result.jsonl").exists()


def test_one_token_has_no_decode_step() -> None:
    result = Result.of(OneBatchOptions(), (2, 10, 1), [0.5])
    assert result.median_decode_latency is None
    assert result.overall_throughput == 44
    assert len(result.lines()) == 3


def test_unknown_flag_is_the_engines_to_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--model-path", "demo", "--page-sise", "1"])
    assert caught.value.code == 2
    assert "--page-size" in capsys.readouterr().err
