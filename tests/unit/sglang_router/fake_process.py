"""Stands in for an engine worker or the gateway: `fake_process.py engine|gateway FLAGS…`.

It holds a connection to the test's socket for as long as it lives, and tells it what happens. An
engine has a child process, as a real one has its scheduler.
"""

import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time


class Line:
    """The connection to the test."""

    def __init__(self, name: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.environ["FAKE_SOCKET"])
        self.tell(
            name=name,
            pid=os.getpid(),
            argv=sys.argv[2:],
            omp=os.environ.get("OMP_NUM_THREADS"),
            admin_key=os.environ.get("SMG_ADMIN_API_KEY"),
        )

    def tell(self, **event: object) -> None:
        self._socket.sendall(json.dumps({**event, "time": time.monotonic()}).encode() + b"\n")

    def wait_for_order(self) -> str:
        """The test's word, or nothing once the process was asked to end."""
        return self._socket.recv(64).decode()

    def end_on_term(self) -> threading.Event:
        """Set by SIGTERM, which also ends a wait for an order."""
        ended = threading.Event()

        def on_term(*_: object) -> None:
            self.tell(event="term")
            self._socket.shutdown(socket.SHUT_RD)
            ended.set()

        signal.signal(signal.SIGTERM, on_term)
        return ended


def value_of(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


def engine() -> None:
    scheduler = subprocess.Popen([sys.executable, __file__, "scheduler"])
    line = Line("engine")
    ended = line.end_on_term()
    print("loading weights\rwarming up", file=sys.stderr, flush=True)
    if line.wait_for_order() == "die":
        # Leaves its scheduler behind, as a crash does.
        print("RuntimeError: out of memory", file=sys.stderr, flush=True)
        os._exit(3)
    ended.wait()
    if "--hang" not in sys.argv:
        scheduler.kill()
        return
    signal.pause()


def scheduler() -> None:
    Line("scheduler")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


class Answers(http.server.BaseHTTPRequestHandler):
    ready = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/readiness":
            workers = len(sys.argv) - sys.argv.index("--worker-urls") - 1
            # Before the word of the test, one worker is still missing.
            healthy = workers if self.ready.is_set() else workers - 1
            status, body = 200 if healthy else 503, {"healthy_workers": healthy}
        else:
            status, body = 200, {"data": [{"id": "fake-model"}]}
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing is logged per request."""


def gateway() -> None:
    server = http.server.ThreadingHTTPServer((value_of("--host"), int(value_of("--port"))), Answers)
    line = Line("gateway")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ended = line.end_on_term()
    if line.wait_for_order() == "go":
        Answers.ready.set()
    ended.wait()
    if os.environ.get("FAKE_GATEWAY_DRAIN") == "stuck":
        signal.pause()
    line.tell(event="drained")


if __name__ == "__main__":
    {"engine": engine, "scheduler": scheduler, "gateway": gateway}[sys.argv[1]]()
