"""The private folder of a worker's sockets, and the removal of those that a killed worker left."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "sglang-worker-"
LOCK = "lock"  # held, by `flock`, for as long as the worker lives


@contextmanager
def work_folder(parent: Path | None = None) -> Iterator[Path]:
    """A new folder that only this user can enter; it goes when the block is left."""
    parent = parent or Path(tempfile.gettempdir())
    remove_abandoned(parent)
    # Under another name until it is locked, so that nobody takes it for abandoned.
    unlocked = Path(tempfile.mkdtemp(prefix=f"new-{PREFIX}", dir=parent))
    folder = unlocked.with_name(unlocked.name.removeprefix("new-"))
    try:
        with (unlocked / LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            unlocked.rename(folder)
            yield folder
    finally:
        for path in (unlocked, folder):
            shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Removes the folders whose worker was killed: nobody holds their lock any more."""
    for lock in parent.glob(f"{PREFIX}*/{LOCK}"):
        # Another user's, one that just goes, or one in use: not ours to remove.
        with suppress(OSError), lock.open("r+") as held:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
