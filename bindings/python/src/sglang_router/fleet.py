"""Child processes of one command: each in a group of its own, its lines shown, none left behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from sglang_router import watchdog

POLL_SECONDS = 0.05


class Child:
    """One process with its group. Its output goes line by line to `output`, after its name."""

    def __init__(
        self, name: str, command: Sequence[str], extra_env: Mapping[str, str], output: TextIO
    ) -> None:
        self.name = name
        self._output = output
        self._process = subprocess.Popen(
            command,
            env={**os.environ, **extra_env},  # noqa: TID251 (a child inherits the whole environment)
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self._pump = threading.Thread(target=self._show_lines, name=f"{name} output", daemon=True)
        self._pump.start()

    @property
    def group(self) -> int:
        """The process group, which has the number of its first process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """`None` while it runs; negative: the signal that ended it."""
        return self._process.poll()

    def ask_to_end(self) -> None:
        if self.exit_code is None:
            watchdog.send(self.group, signal.SIGTERM)

    def kill(self) -> None:
        """Kills the whole group: also what the process left behind when it ended by itself."""
        watchdog.send(self.group, signal.SIGKILL)
        self._process.wait()

    def finish_output(self, timeout: float) -> None:
        """Waits until the last lines are shown."""
        self._pump.join(timeout)

    def _show_lines(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                if text := line.rstrip():
                    self._output.write(f"[{self.name}] {text}\n")
                    self._output.flush()


class Fleet:
    """All children, in the order in which they are to end."""

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._children: list[Child] = []
        self._watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(watchdog.__file__))],
            stdin=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def start(
        self, name: str, command: Sequence[str], extra_env: Mapping[str, str] | None = None
    ) -> Child:
        child = Child(name, command, extra_env or {}, self._output)
        self._children.append(child)
        self._tell_watchdog(str(child.group))
        return child

    def end(self, graces: Mapping[str, float], hurry: Callable[[], bool]) -> None:
        """Ends the children one stage after the other, and kills what is left.

        `graces` names the stages by the first word of a child's name, with the seconds that it
        has; `hurry` ends the waiting.
        """
        for stage, grace in graces.items():
            members = [child for child in self._children if child.name.split()[0] == stage]
            for child in members:
                child.ask_to_end()
            deadline = time.monotonic() + grace
            while any(child.exit_code is None for child in members):
                if hurry() or time.monotonic() > deadline:
                    break
                time.sleep(POLL_SECONDS)
        for child in self._children:
            child.kill()
        for child in self._children:
            child.finish_output(timeout=1.0)
        self._tell_watchdog("done")
        self._watchdog.wait()

    def _tell_watchdog(self, line: str) -> None:
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.write(f"{line}\n")
        self._watchdog.stdin.flush()
