"""CI markers are read without importing the test file."""

from pathlib import Path

import pytest

from sglang.test.ci.ci_register import Registration, register_cpu_ci, registrations

REGISTERED = Path(__file__).resolve().parents[3] / "registered"


def written(folder: Path, text: str) -> Path:
    path = folder / "test_some.py"
    path.write_text(text)
    return path


def test_marker_does_nothing_when_the_file_runs() -> None:
    register_cpu_ci(2.0, "suite", stage="a", nightly=True, disabled="flaky")


def test_markers_are_read_in_order_and_nothing_is_imported(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import no_such_module\n"
        "register_cpu_ci(2.0, 'base-a-test-cpu')\n"
        "register_cuda_ci(est_time=60, stage='b', runner_config='1-gpu', nightly=True)\n",
    )
    assert list(registrations(path)) == [
        Registration("cpu", 2.0, "base-a-test-cpu"),
        Registration("cuda", 60, stage="b", runner_config="1-gpu", nightly=True),
    ]


def test_argument_that_is_no_literal_is_an_error_with_its_place(tmp_path: Path) -> None:
    path = written(tmp_path, "x = 1\nregister_cpu_ci(x, 'suite')\n")
    with pytest.raises(ValueError, match=r"test_some\.py:2: .* must be literals"):
        list(registrations(path))


def test_every_registered_test_file_has_a_marker() -> None:
    files = list(REGISTERED.rglob("test_*.py"))
    assert files
    assert [path for path in files if not list(registrations(path))] == []
