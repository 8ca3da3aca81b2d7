"""What plugins and test suites import under this documented name."""

import contextlib
import os
import signal


def kill_process_tree(parent_pid: int | None, include_parent: bool = True) -> None:
    """Kills all descendants of a process, then the process itself. None: this process.

    Processes that are gone already are passed over. NOTE: nothing is reaped here; that is left to
    whoever started the child.
    """
    import psutil  # type: ignore[import-untyped]

    try:
        parent = psutil.Process(parent_pid)
        family = parent.children(recursive=True)
    except psutil.NoSuchProcess:
        return
    if include_parent and parent.pid != os.getpid():
        family.append(parent)
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process.kill()
    if include_parent and parent.pid == os.getpid():
        os.kill(parent.pid, signal.SIGKILL)
