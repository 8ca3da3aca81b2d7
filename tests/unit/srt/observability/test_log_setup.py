"""Log lines have one format in every process."""

import subprocess
import sys


def test_lines_have_time_level_and_short_name() -> None:
    code = (
        "import logging; from sglang.srt.observability.log_setup import set_up_logging;"
        "set_up_logging('info');"
        "logging.getLogger('sglang.srt.managers.scheduler').info('hello');"
        "logging.getLogger('x').debug('hidden')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    (line,) = done.stderr.strip().splitlines()
    day, time, level, rest = line.split(maxsplit=3)
    assert (level, rest) == ("INFO", "managers.scheduler: hello")
    assert day.count("-") == 2 and time.count(":") == 2
