"""What ends a benchmark, and what ends one of its requests."""


class BenchmarkError(Exception):
    """The measurement cannot be made; the text is one sentence for the user."""


class RequestFailed(Exception):
    """One request failed; failures are counted by `kind`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
