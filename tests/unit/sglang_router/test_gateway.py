"""The gateway inside Python: it starts, says why it cannot, obeys Python's signals, and ends."""

import errno
import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sglang_router import FrontDoor, PolicyType, Router, RouterArgs
from sglang_router.cli import main
from tests.unit.sglang_router.stage import TIMEOUT, free_port

# Says when it listens and how it ended.
DOOR = """
import sys
from sglang_router import FrontDoor
door = FrontDoor({"host": "127.0.0.1", "port": int(sys.argv[1])}, "/nowhere.sock")
door.start()
try:
    print("listening", flush=True)
    door.wait()
except KeyboardInterrupt:
    print("interrupted")
"""


def get(port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def front_door(folder: Path, port: int) -> FrontDoor:
    return FrontDoor({"host": "127.0.0.1", "port": port}, str(folder / "worker.sock"))


def test_a_front_door_listens_when_start_returns_and_is_gone_after_wait(tmp_path: Path) -> None:
    port = free_port()
    door = front_door(tmp_path, port)
    door.start()
    assert get(port, "/liveness")[0] == 200
    status, body = get(port, "/readiness")
    assert status == 503
    assert json.loads(body)["workers"][0]["url"] == f"unix://{tmp_path}/worker.sock"
    door.stop()
    door.wait()
    with pytest.raises(ConnectionRefusedError):
        get(port, "/liveness")


def test_a_port_in_use_is_an_os_error_that_names_it(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen(1)
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}") as raised:
            front_door(tmp_path, port).start()
        assert raised.value.errno == errno.EADDRINUSE


def test_calls_out_of_order_are_told_apart(tmp_path: Path) -> None:
    door = front_door(tmp_path, free_port())
    with pytest.raises(RuntimeError, match="was not started"):
        door.wait()
    door.start()
    with pytest.raises(RuntimeError, match="was started already"):
        door.start()
    door.stop()
    door.wait()


def test_a_router_serves_until_another_thread_stops_it() -> None:
    port = free_port()
    router = Router(host="127.0.0.1", port=port, policy=PolicyType.Random)
    thread = threading.Thread(target=router.start)
    thread.start()
    router.stop()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


def test_options_may_come_as_args_names_or_enums() -> None:
    Router(policy="round_robin", worker_urls=["grpc://a:1"], tokenizer_path=None)
    Router.from_args(RouterArgs(port=31000, cache_threshold=0.5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"polcy": "random"}, "polcy"),
        ({"port": "many"}, "port"),
        ({"worker_urls": ["http://a:1"]}, "grpc://HOST:PORT"),
        ({"policy": "fastest"}, "unknown policy 'fastest'"),
    ],
)
def test_a_wrong_option_is_a_value_error_that_names_it(
    options: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Router(**options)


def test_ctrl_c_reaches_python_while_the_gateway_serves() -> None:
    command = [sys.executable, "-c", DOOR, str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=TIMEOUT)[0] == "interrupted\n"
        assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_drains_and_ends_well_on_a_signal(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "sglang_router", "launch", "--port", str(free_port())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline()
        process.send_signal(number)
        assert process.wait(TIMEOUT) == 0


def test_the_command_refuses_an_unknown_flag_with_the_nearest(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(["launch", "--polcy", "random"]) == 2
    assert "--policy" in capfd.readouterr().err


def test_help_names_the_command_that_only_the_wheel_has(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capfd.readouterr().out
    assert "launch" in shown
    assert "smg server" in shown
