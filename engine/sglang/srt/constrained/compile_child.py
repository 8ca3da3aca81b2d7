"""The program that forks compilers: it loads their modules once, and each fork compiles.

A script on the standard library alone, so that nothing but those modules is loaded. It ends, and
its forks with it, when the engine's end of its socket closes.

    engine ── control socket ──> this program ── fork ──> compiler ── its own socket ──> engine
"""

import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

# What the engine asks: an operation, and the process it is about.
ORDER = struct.Struct("<cq")
FORK, END = b"f", b"e"
NUMBER = struct.Struct("<q")  # the answer: the new process, or how the old one has ended
HEAD = struct.Struct("<QQ")  # lengths of the settings and of the payload, sent before all orders
UNKNOWN = 0  # how a process ended that is not ours
# What a compiler tells, as the first byte of a message.
READY, DONE, DONE_LAST, REFUSED, NO_MEMORY, FAILED = b"r", b"d", b"l", b"n", b"m", b"x"
RESERVED = 512 << 20  # address space that threads reserve and do not use
PR_SET_PDEATHSIG = 1

Compile = Callable[[str, str], bytes]


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the engine alone decides when to end
    children: set[int] = set()
    control = socket.socket(fileno=int(sys.argv[1]))
    with contextlib.suppress(ConnectionError):  # the engine was killed
        settings, payload = _read_settings(control)
        sys.path[:] = settings["path"]
        with contextlib.suppress(Exception):  # compilers tell what is wrong with them
            for module in (*settings["preload"], settings["make_compiler"].partition(":")[0]):
                importlib.import_module(module)
        gc.collect()
        gc.freeze()
        while order := _receive(control):
            (operation, pid), fds = order
            if operation == FORK:
                pid = _fork(control, fds[0], settings, payload)
                children.add(pid)
                control.sendall(NUMBER.pack(pid))
            else:
                control.sendall(NUMBER.pack(_end(pid) if pid in children else UNKNOWN))
                children.discard(pid)
    for pid in children:
        _end(pid)


def _read_settings(control: socket.socket) -> tuple[dict[str, Any], bytes]:
    with control.makefile("rb", buffering=0) as stream:
        settings_len, payload_len = HEAD.unpack(_read(stream, HEAD.size))
        return json.loads(_read(stream, settings_len)), _read(stream, payload_len)


def _read(stream: "socket.SocketIO", length: int) -> bytes:
    parts = bytearray()
    while len(parts) < length:
        part = stream.read(length - len(parts))
        if not part:
            raise ConnectionResetError("the engine has gone")
        parts += part
    return bytes(parts)


def _receive(control: socket.socket) -> tuple[tuple[bytes, int], list[int]] | None:
    message, fds, _, _ = socket.recv_fds(control, ORDER.size, 1)
    return (ORDER.unpack(message), fds) if message else None


def _end(pid: int) -> int:
    """Kills and buries a child. Until then its number belongs to nobody else."""
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _fork(control: socket.socket, fd: int, settings: dict[str, Any], payload: bytes) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        control.close()
        _compile_for_ever(Connection(fd), parent, settings, payload)
    os.close(fd)
    return pid


# ------------------------------------------------------------------ in a compiler


def _compile_for_ever(
    engine: "Connection", parent: int, settings: dict[str, Any], payload: bytes
) -> NoReturn:
    """Until the engine hangs up, or memory has been used that a next one would lack."""
    code = 1
    try:
        _end_with(parent)
        code = _run(engine, settings, payload)
    except (EOFError, ConnectionError):
        code = 0
    finally:
        os._exit(code)


def _end_with(parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def _run(engine: "Connection", settings: dict[str, Any], payload: bytes) -> int:
    try:
        module, _, function = settings["make_compiler"].partition(":")
        compile_text: Compile = getattr(importlib.import_module(module), function)(payload)
    except Exception as error:
        logging.exception("The compiler of constraints cannot be made")
        engine.send_bytes(FAILED + _text(error))
        return 1
    del payload
    allowed: int = settings["memory_bytes"]
    base = _limit_memory(allowed)
    engine.send_bytes(READY)
    while True:
        kind, _, text = engine.recv_bytes().partition(b"\0")
        answer = _answer(compile_text, kind.decode(), text.decode(errors="surrogatepass"))
        is_last = answer[:1] in (NO_MEMORY, FAILED) or _data_bytes() - base > allowed // 2
        if is_last and answer[:1] == DONE:
            answer = DONE_LAST + answer[1:]
        engine.send_bytes(answer)
        if is_last:
            return 0


def _answer(compile_text: Compile, kind: str, text: str) -> bytes:
    try:
        return DONE + compile_text(kind, text)
    except MemoryError:
        answer = NO_MEMORY
    except ValueError as error:
        answer = REFUSED + _text(error)
    except Exception as error:
        logging.exception("A %s constraint was not compiled", kind)
        answer = FAILED + _text(error)
    return answer


def _text(error: Exception) -> bytes:
    name = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
    return f"{name}{error}"[:4096].encode(errors="replace")


def _limit_memory(allowed: int) -> int:
    """Lets the process take so much more than it has, which is returned."""
    sizes = _sizes()
    if sys.platform == "linux":
        for limit, now in (
            (resource.RLIMIT_DATA, sizes["VmData"] + allowed),
            (resource.RLIMIT_AS, sizes["VmSize"] + allowed + RESERVED),
        ):
            hard = resource.getrlimit(limit)[1]
            soft = now if hard == resource.RLIM_INFINITY else min(now, hard)
            resource.setrlimit(limit, (soft, hard))
    return sizes["VmData"]


def _data_bytes() -> int:
    return _sizes()["VmData"]


def _sizes() -> dict[str, int]:
    """Bytes of address space, and of what can be written there; 0 where nobody says."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    found = {line.partition(":")[0]: line.split() for line in lines}
    return {
        name: int(found[name][1]) * 1024 if name in found else 0 for name in ("VmData", "VmSize")
    }


if __name__ == "__main__":
    main()
