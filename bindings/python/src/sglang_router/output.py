"""Standard output whose reader may stop early, as `head` does."""

import contextlib
import os
import select
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def may_go_unread() -> Iterator[None]:
    """Around a whole command: a reader that has enough is no failure, and ends it quietly.

    A broken pipe to anything else is raised.
    """
    try:
        yield
    except BrokenPipeError:
        if not _is_unread():
            raise
    finally:
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # The rest is flushed once more when the process ends.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_unread() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
