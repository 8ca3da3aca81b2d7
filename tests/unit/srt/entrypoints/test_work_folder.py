"""A worker's folder is private, goes with it, and a killed worker's is swept by the next."""

import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sglang.srt.entrypoints.work_folder import LOCK, remove_abandoned, work_folder

HOLDER = """
import sys
from pathlib import Path
from sglang.srt.entrypoints.work_folder import work_folder
with work_folder(Path(sys.argv[1])) as folder:
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_it_is_private_and_goes_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), work_folder(tmp_path) as folder:
        assert folder.parent == tmp_path
        assert folder.name.startswith("sglang-worker-")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_a_living_worker_s_folder_stays_and_a_killed_one_s_goes(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert holder.stdout is not None
        folder = Path(holder.stdout.readline().strip())
        (folder / "grpc.sock").touch()
        remove_abandoned(tmp_path)
        assert (folder / "grpc.sock").exists()
    finally:
        holder.kill()
        holder.wait(60)
    assert folder.exists()
    with work_folder(tmp_path) as own:
        assert list(tmp_path.iterdir()) == [own]


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    foreign = tmp_path / "sglang-notes"
    foreign.mkdir()
    (foreign / "text").touch()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / LOCK).touch()
    remove_abandoned(tmp_path)
    assert (foreign / "text").exists()
    assert (tmp_path / "other" / LOCK).exists()
