"""Where a request belongs in the caller's trace."""

from typing import Any

from sglang.srt.observability.tracing import CONTEXT_HEADERS


def trace_context(context: Any) -> dict[str, str]:
    """The caller's W3C trace context, by header."""
    metadata = context.invocation_metadata() or ()
    return {name: value for name, value in metadata if name in CONTEXT_HEADERS}
