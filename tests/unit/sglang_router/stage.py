"""Runs `smg server` with fake children and listens to what happens to each of them."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 30.0

RUN = """
import sys
from sglang_router.launch_server import Commands, main
fake = (sys.executable, {fake!r})
sys.exit(main(sys.argv[1:], Commands(engine=(*fake, "engine"), gateway=(*fake, "gateway"))))
"""


@dataclass
class Actor:
    """One fake process. It is alive until its connection ends."""

    connection: socket.socket
    introduction: dict[str, object]

    @property
    def name(self) -> object:
        return self.introduction["name"]

    @property
    def pid(self) -> int:
        return int(str(self.introduction["pid"]))

    def tell(self, order: str) -> None:
        self.connection.sendall(order.encode())

    def events_until_death(self) -> list[dict[str, object]]:
        """Raises `TimeoutError` if the process goes on living."""
        self.connection.settimeout(TIMEOUT)
        with self.connection.makefile() as lines:
            return [json.loads(line) for line in lines]


class Stage:
    """One run of `smg server`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stage.sock"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen(16)
        self._listener.settimeout(TIMEOUT)
        self._started: subprocess.Popen[str] | None = None
        self._errors: list[str] = []
        self._new_error = threading.Condition()
        self._reader = threading.Thread(target=self._read_errors)

    @property
    def process(self) -> "subprocess.Popen[str]":
        assert self._started is not None
        return self._started

    def run(self, *flags: str, **env: str) -> "subprocess.Popen[str]":
        fake = Path(__file__).with_name("fake_process.py")
        inherited = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
        self._started = subprocess.Popen(
            [sys.executable, "-c", RUN.format(fake=str(fake)), *flags],
            env={**inherited, "FAKE_SOCKET": str(self._path), **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._reader.start()
        return self._started

    def cast(self, count: int) -> list[Actor]:
        """The next `count` processes that introduce themselves, by name."""
        actors = [self._accept() for _ in range(count)]
        return sorted(actors, key=lambda actor: str(actor.name))

    def output_until_ready(self) -> str:
        """What is printed on standard output up to and with the line that has the curl."""
        assert self.process.stdout is not None
        lines = []
        for line in self.process.stdout:
            lines.append(line)
            if "curl" in line:
                break
        return "".join(lines)

    def finish(self) -> tuple[int, str]:
        """Exit code and standard error, once the process has ended."""
        code = self.process.wait(TIMEOUT)
        self._reader.join(TIMEOUT)
        return code, "".join(self._errors)

    def close(self) -> None:
        if self._started is not None and self._started.poll() is None:
            self._started.kill()
            self._started.wait()
        self._listener.close()

    def wait_for_error(self, text: str) -> None:
        """Waits until standard error has a line with `text`."""
        with self._new_error:
            found = self._new_error.wait_for(
                lambda: any(text in line for line in self._errors), TIMEOUT
            )
        assert found, f"{text!r} is not in {self._errors}"

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._new_error:
                self._errors.append(line)
                self._new_error.notify_all()

    def _accept(self) -> Actor:
        connection, _ = self._listener.accept()
        connection.settimeout(TIMEOUT)
        first = b""
        while not first.endswith(b"\n"):
            first += connection.recv(1)
        return Actor(connection, json.loads(first))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def stage(folder: Path) -> Iterator[Stage]:
    opened = Stage(folder)
    yield opened
    opened.close()
