"""Compilers that do what a text says, run by the tests of `CompileServer` in its processes."""

import itertools
import os
import sys
from collections.abc import Callable
from pathlib import Path


def obedient(payload: bytes) -> Callable[[str, str], bytes]:
    """Its answers begin with the payload and the number of its process."""

    def compile_text(kind: str, text: str) -> bytes:
        if text.startswith("never ends"):
            if fifo := text.removeprefix("never ends").strip():
                Path(fifo).write_text("begun")
            for _ in itertools.count():
                pass
        if text == "wants all memory":
            return bytes(sum(len(block) for block in [bytearray(1 << 20) for _ in range(1 << 20)]))
        if text == "keeps memory":
            kept.append(bytearray(b"\1") * (24 << 20))
        if text == "which modules" and "tabnanny" in sys.modules:
            return b"had tabnanny"
        if text == "crashes":
            os.abort()
        if text == "is refused":
            raise ValueError("unclosed group")
        if text == "has a fault":
            raise KeyError("rule")
        return b"%b %d %s %s" % (payload, os.getpid(), kind.encode(), text.encode())

    kept: list[bytearray] = []
    return compile_text


def unmade(payload: bytes) -> Callable[[str, str], bytes]:
    raise ValueError("no such tokenizer")


def crashing(payload: bytes) -> Callable[[str, str], bytes]:
    os.abort()
