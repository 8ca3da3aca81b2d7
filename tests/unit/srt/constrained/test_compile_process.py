"""Whatever a compilation does, it costs itself only, and leaves no process behind."""

import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from sglang.srt.constrained.compile_process import (
    CompilerDied,
    CompileRefused,
    CompilerMissing,
    CompileServer,
    CompileTimeout,
)

COMPILERS = "tests.unit.srt.constrained.compilers"
MANY = 30.0  # seconds: more than anything takes on a busy machine
MEMORY = 32 << 20


class Watched(CompileServer):
    """Knows all processes that it has had."""

    def __init__(self, function: str = "obedient", num_processes: int = 1) -> None:
        super().__init__(
            f"{COMPILERS}:{function}",
            b"P",
            num_processes=num_processes,
            memory_bytes=MEMORY,
            preload=["tabnanny"],
        )
        self.seen: dict[int, psutil.Process] = {}

    def ask(self, text: str, timeout: float = MANY) -> str:
        try:
            return self.compile("regex", text, timeout).decode()
        finally:
            self.look()

    def look(self) -> None:
        parent = self._forks._process
        if parent is not None and psutil.pid_exists(parent.pid):
            root = psutil.Process(parent.pid)
            for process in [root, *root.children(recursive=True)]:
                self.seen.setdefault(process.pid, process)

    def pid_of(self, answer: str) -> int:
        return int(answer.split()[1])


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


@pytest.fixture
def make() -> Iterator[Callable[..., Watched]]:
    servers: list[Watched] = []

    def made(function: str = "obedient", num_processes: int = 1) -> Watched:
        servers.append(Watched(function, num_processes))
        return servers[-1]

    yield made
    for server in servers:
        server.look()
        server.close()
        assert not psutil.wait_procs(server.seen.values(), timeout=MANY)[1]


def test_answers_come_from_one_process_that_has_the_payload(make: Callable[..., Watched]) -> None:
    server = make()
    first, second = server.ask("a"), server.ask("é\0b")
    assert first.split()[0] == "P" and first.split()[2:] == ["regex", "a"]
    assert second.endswith("regex é\0b")
    assert server.pid_of(first) == server.pid_of(second) != os.getpid()


def test_what_is_preloaded_is_there_when_a_compiler_begins(make: Callable[..., Watched]) -> None:
    assert "tabnanny" not in sys.modules
    assert make().ask("which modules").endswith("had tabnanny")


def test_a_refusal_is_told_and_ends_nothing(make: Callable[..., Watched]) -> None:
    server = make()
    pid = server.pid_of(server.ask("a"))
    with pytest.raises(CompileRefused, match="^unclosed group$"):
        server.ask("is refused")
    assert server.pid_of(server.ask("b")) == pid


@pytest.mark.parametrize(
    ("text", "timeout", "error", "message"),
    [
        ("never ends", 0.2, CompileTimeout, r"within 0.2 s \(--grammar-compile-timeout\)"),
        ("wants all memory", MANY, CompilerDied, rf"{MEMORY} bytes,.*--grammar-max-compiled-bytes"),
        ("crashes", MANY, CompilerDied, r"\(SIGABRT\).*--grammar-max-compiled-bytes"),
        ("has a fault", MANY, CompilerDied, "KeyError: 'rule'"),
    ],
)
def test_a_bad_one_costs_its_process_and_the_next_one_is_compiled(
    make: Callable[..., Watched], text: str, timeout: float, error: type[Exception], message: str
) -> None:
    server = make()
    pid = server.pid_of(server.ask("a"))
    for _ in range(2):
        with pytest.raises(error, match=message):
            server.ask(text, timeout)
        assert is_gone(pid)
        pid = server.pid_of(server.ask("b"))


def test_one_that_keeps_much_memory_answers_and_is_replaced(make: Callable[..., Watched]) -> None:
    server = make()
    first = server.ask("keeps memory")
    assert first.endswith("keeps memory")
    assert is_gone(server.pid_of(first))
    assert server.pid_of(server.ask("a")) != server.pid_of(first)


@pytest.mark.parametrize("whole", [False, True])
def test_processes_that_are_killed_between_two_compilations_are_replaced(
    make: Callable[..., Watched], whole: bool
) -> None:
    server = make()
    pid = server.pid_of(server.ask("a"))
    end = os.pidfd_open(pid)  # readable once it has ended, whoever has to bury it
    try:
        os.kill(psutil.Process(pid).ppid() if whole else pid, signal.SIGKILL)
        assert select.select([end], [], [], MANY)[0]
    finally:
        os.close(end)
    assert server.pid_of(server.ask("b")) != pid


@pytest.mark.parametrize("whole", [False, True])
def test_a_compiler_that_is_killed_at_work_says_nothing_about_the_constraint(
    make: Callable[..., Watched], tmp_path: Path, whole: bool
) -> None:
    server = make()
    pid = server.pid_of(server.ask("a"))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.ask, f"never ends {fifo}")
        assert fifo.read_text() == "begun"
        os.kill(psutil.Process(pid).ppid() if whole else pid, signal.SIGKILL)
        with pytest.raises(CompilerMissing, match="was ended from outside.*; try it again"):
            asked.result(MANY)
    assert server.pid_of(server.ask("b")) != pid


@contextmanager
def one_that_never_ends(server: Watched, folder: Path) -> Iterator[threading.Thread]:
    """It has begun; when the server is closed its thread ends."""
    fifo = folder / "fifo"
    os.mkfifo(fifo)
    errors: list[str] = []

    def ask() -> None:
        try:
            server.compile("regex", f"never ends {fifo}", MANY)
        except CompilerMissing as error:
            errors.append(str(error))

    thread = threading.Thread(target=ask)
    thread.start()
    assert fifo.read_text() == "begun"
    yield thread
    server.look()
    server.close()
    thread.join(MANY)
    assert errors == ["the engine ends"]


def test_as_many_compile_at_once_as_there_are_processes(
    make: Callable[..., Watched], tmp_path: Path
) -> None:
    server = make(num_processes=2)
    with one_that_never_ends(server, tmp_path) as thread:
        with ThreadPoolExecutor(20) as pool:
            answers = list(pool.map(server.ask, map(str, range(20))))
        assert [answer.split()[3] for answer in answers] == [str(n) for n in range(20)]
        assert thread.is_alive(), "they have waited for its end"


@pytest.mark.parametrize(
    ("function", "message"),
    [("unmade", "no such tokenizer"), ("crashing", "SIGABRT"), ("missing", "missing")],
)
def test_a_compiler_that_cannot_be_made_says_why(
    make: Callable[..., Watched], function: str, message: str
) -> None:
    server = make(function)
    for _ in range(2):
        with pytest.raises(CompilerMissing, match=message):
            server.ask("a")


def test_closing_ends_what_is_under_way(make: Callable[..., Watched], tmp_path: Path) -> None:
    server = make()
    with one_that_never_ends(server, tmp_path):
        pass
    with pytest.raises(CompilerMissing, match="the engine ends"):
        server.ask("b")


OWNER = """
import threading, sys
from sglang.srt.constrained.compile_process import CompileServer
server = CompileServer(sys.argv[1], b"P", num_processes=2, memory_bytes=1 << 25)
print(server.compile("regex", "a", 30).decode(), flush=True)
server.compile("regex", "never ends", 60)
"""


def test_processes_end_with_the_engine_however_it_ends() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, f"{COMPILERS}:obedient"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline().split()[1])
        children = psutil.Process(owner.pid).children(recursive=True)
        assert pid in [child.pid for child in children]
        assert len(children) >= 2
    finally:
        owner.kill()
        owner.communicate(timeout=MANY)
    assert not psutil.wait_procs(children, timeout=MANY)[1]
