"""Starts and ends the scheduler process of a worker."""

import importlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing.connection import wait as wait_for_handles
from multiprocessing.process import BaseProcess
from typing import Any

from sglang.srt import plugins
from sglang.srt.environ import let_idle_threads_sleep
from sglang.srt.observability.log_setup import set_up_logging
from sglang.srt.server_args import PortArgs, ServerArgs

logger = logging.getLogger(__name__)
SCHEDULER_MODULE = "sglang.srt.managers.scheduler"
END_TIMEOUT = 5.0  # seconds for the scheduler to leave its loop


def __getattr__(name: str) -> Any:
    """`Engine` has this address, but the scheduler process does not load it."""
    if name != "Engine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("sglang.srt.entrypoints.offline.engine").Engine


def _launch_subprocesses(server_args: ServerArgs, port_args: PortArgs) -> "SchedulerProcess":
    """Starts the scheduler in a process of its own; it reports over ZMQ."""
    plugins.load_plugins()  # has an effect where a program comes here without a command line
    if not server_args.sealed:
        server_args.check_server_args()
    spawning = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
    process = spawning.Process(
        target=_run_scheduler, args=(server_args, port_args), name="sglang-scheduler", daemon=True
    )
    let_idle_threads_sleep()
    process.start()
    return SchedulerProcess(process)


class SchedulerProcess:
    """The child, from the launcher's side."""

    def __init__(self, process: BaseProcess) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        assert self._process.pid is not None, "the process was started"
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """A file descriptor that becomes readable when the process has ended."""
        return self._process.sentinel

    def describe_end(self) -> str:
        """How the process ended, in words. Only after it did."""
        self._process.join(END_TIMEOUT)
        code = self._process.exitcode
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"ended with code {code}"
        return f"The scheduler process (pid {self.pid}) {how}"

    def end(self, timeout: float = END_TIMEOUT) -> None:
        """Waits for the process to end by itself, then kills it. Nothing is left afterwards."""
        self._process.join(timeout)
        if self._process.is_alive():
            logger.warning("the scheduler did not end within %g s, killing it", timeout)
            self.kill()

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _run_scheduler(server_args: ServerArgs, port_args: PortArgs) -> None:
    """First function of the scheduler process."""
    # The launcher alone decides when to end; a signal to the whole group reaches this process too.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="parent-watch", daemon=True).start()
    set_up_logging(server_args.log_level)
    plugins.load_plugins()
    # Looked up when called, so that a replaced function is the one that runs.
    run = importlib.import_module(SCHEDULER_MODULE).run_scheduler_process
    code = 0
    try:
        run(server_args, port_args)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except Exception:
        logger.exception("The scheduler failed")
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # threads that still compile a grammar must not hold the end


def _end_with_parent() -> None:
    """Ends this process at once when the launcher is gone, however it went."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a child process"
    wait_for_handles([parent.sentinel])
    os._exit(1)
