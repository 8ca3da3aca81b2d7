"""Standard output whose reader stops early."""

import pytest

from sglang_router.output import may_go_unread
from tests.unread_output import run_unread

COMMANDS = {
    "sglang": ("-m", "sglang.cli.main", "--help"),
    "version": ("-m", "sglang.cli.main", "version"),
    "launch_server": ("-m", "sglang.launch_server", "--help"),
    "bench_serving": ("-m", "sglang.bench_serving", "--help"),
}


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("command", COMMANDS)
def test_command_that_nobody_reads_ends_quietly(command: str, unbuffered: bool) -> None:
    ended = run_unread(COMMANDS[command], unbuffered)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_exit_code_is_kept() -> None:
    code = (
        "import sys; from sglang_router.output import may_go_unread\n"
        "with may_go_unread(): print('x'); sys.exit(3)"
    )
    ended = run_unread(["-c", code], unbuffered=False)
    assert (ended.returncode, ended.stderr) == (3, "")


def test_other_broken_pipes_are_raised(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BrokenPipeError), may_go_unread():
        raise BrokenPipeError
