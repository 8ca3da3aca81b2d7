"""The one format of log lines, for every process of a worker."""

import io
import logging
import sys

FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
DATE_FORMAT = "%Y-%m-%d %H:%M:%S"


def set_up_logging(level: str) -> None:
    """Sends records of `level` and above to stderr. Called once per process, before any work.

    What plugins print is also in a log file line by line, not when the process ends.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_ShortNames(FORMAT, DATE_FORMAT))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


class _ShortNames(logging.Formatter):
    """Shows `managers.scheduler` for `sglang.srt.managers.scheduler`."""

    def format(self, record: logging.LogRecord) -> str:
        record.name = record.name.removeprefix("sglang.srt.")
        return super().format(record)
