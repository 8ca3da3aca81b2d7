"""Requests that the scheduler ended with a status instead of an answer."""

import grpc

from sglang.srt.core.messages import FinishReason

Code = grpc.StatusCode

CODE_OF_STATUS = {
    400: Code.INVALID_ARGUMENT,
    404: Code.NOT_FOUND,
    409: Code.ALREADY_EXISTS,
    413: Code.INVALID_ARGUMENT,
    422: Code.INVALID_ARGUMENT,
    429: Code.RESOURCE_EXHAUSTED,
    499: Code.CANCELLED,
    501: Code.UNIMPLEMENTED,
    # Another worker may have room; this one, asked again, has not.
    503: Code.RESOURCE_EXHAUSTED,
    504: Code.DEADLINE_EXCEEDED,
}


class RefusedRequest(Exception):
    """The scheduler ended a request with a status before anything was sent."""

    def __init__(self, finish: FinishReason) -> None:
        super().__init__(finish.message or "The request was aborted")
        self.code = CODE_OF_STATUS.get(finish.status_code or 0, Code.INTERNAL)


def is_refusal(finish: FinishReason | None) -> bool:
    return finish is not None and finish.type == "abort" and finish.status_code is not None
