"""Where the launcher's messages arrive."""

import math
from collections.abc import Sequence

import msgspec
import zmq

from sglang.srt.core.messages import SchedulerInput, ShutdownInput


class Inbox:
    """The receiving end of the launcher's socket.

    `wake_fds` become readable when the process has to end: the parent is gone, or SIGTERM came.
    """

    def __init__(self, socket: "zmq.Socket[bytes]", wake_fds: Sequence[int] = ()) -> None:
        self._socket = socket
        self._wake_fds = frozenset(wake_fds)
        self._decoder = msgspec.msgpack.Decoder(SchedulerInput)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        for fd in wake_fds:
            self._poller.register(fd, zmq.POLLIN)

    def receive(self, *, wait: float | None) -> list[SchedulerInput]:
        """All that has arrived; waits up to so many seconds for it, None: until there is any."""
        ready = dict(self._poller.poll(None if wait is None else math.ceil(wait * 1000)))
        inputs: list[SchedulerInput] = []
        if self._socket in ready:
            inputs = self._drain()
        if self._wake_fds & ready.keys():
            inputs.append(ShutdownInput())
        return inputs

    def _drain(self) -> list[SchedulerInput]:
        inputs: list[SchedulerInput] = []
        while True:
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return inputs
            inputs.append(self._decoder.decode(frame))
