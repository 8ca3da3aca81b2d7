"""Where the scheduler's messages leave."""

import msgspec
import zmq

from sglang.srt.core.messages import SchedulerOutput

LINGER_MS = 2000  # the last message, often the reason of a failure, must still get out


class Outbox:
    """The sending end of the launcher's socket."""

    def __init__(self, socket: "zmq.Socket[bytes]") -> None:
        self._socket = socket
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._encoder = msgspec.msgpack.Encoder()

    def send(self, output: SchedulerOutput) -> None:
        self._socket.send(self._encoder.encode(output))
