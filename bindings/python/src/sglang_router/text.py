"""The text library: encode, decode, stream text, find stop strings, render chat templates."""

from sglang_router.sglang_router_rs import (
    IncrementalDecoder,
    StopMatcher,
    StopProgress,
    TextError,
    Tokenizer,
)

__all__ = ["IncrementalDecoder", "StopMatcher", "StopProgress", "TextError", "Tokenizer"]
