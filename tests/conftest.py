"""What every test may rely on."""

import signal


def pytest_configure() -> None:
    """Children can be interrupted: a shell that runs tests in the background has SIGINT ignored,
    and what is ignored stays so in every child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
