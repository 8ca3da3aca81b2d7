"""The worker process: its device, its watchdog, its log."""

from dataclasses import dataclass
from typing import Annotated as A

from sglang.srt.arg_groups.declaration import Bound, Choices, Group

GROUP = Group("process")
DEVICE_CHOICES = ["cpu", "cuda"]
LOG_LEVELS = ["debug", "info", "warning", "error"]
DAY = 86400.0  # seconds


@dataclass
class ProcessArgs:
    """Device, watchdog, log."""

    device: A[str | None, GROUP, Choices(lambda: DEVICE_CHOICES), "Where the model runs."] = "cpu"
    watchdog_timeout: A[
        float,
        GROUP,
        Bound(gt=0, le=DAY),
        "Seconds without progress of a running batch after which the worker ends.",
    ] = 300.0
    log_level: A[str, GROUP, Choices(lambda: LOG_LEVELS), "Least level that is logged."] = "info"
