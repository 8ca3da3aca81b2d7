"""`smg … | head`."""

import pytest

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
