"""`smg … | head`."""

import inspect

import pytest

import sglang.cli.output
import sglang_router.output
from tests.unread_output import run_unread

COMMANDS = {
    "smg": ("sglang_router", "--help"),
    "smg server": ("sglang_router", "server", "--help"),
    "launch_router": ("sglang_router.launch_router", "--help"),
    "launch_server": ("sglang_router.launch_server", "--help"),
}


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_command_that_nobody_reads_ends_quietly(command: str, unbuffered: bool) -> None:
    ended = run_unread(["-m", *COMMANDS[command]], unbuffered)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_both_packages_do_the_same() -> None:
    """Neither may import the other for it."""
    assert inspect.getsource(sglang_router.output) == inspect.getsource(sglang.cli.output)
