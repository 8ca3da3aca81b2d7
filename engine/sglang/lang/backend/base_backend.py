"""What a program runs against, and when it is called."""

import importlib
from collections.abc import Iterator, Sequence
from typing import Any

from sglang.lang.chat_template import ChatTemplate, get_chat_template
from sglang.lang.choices import ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.ir import SglSamplingParams
from sglang.lang.transcript import Transcript


class BaseBackend:
    """Methods are called from the programs' threads, several at once.

    What a backend does not have stays as it is here: hints do nothing, the rest raises.
    """

    # The model is asked with messages, so an answer can only begin a turn.
    is_chat_model = False
    # States are joined by their texts alone; nothing asks for `concatenate_and_append`.
    support_concate_and_append = False

    def __init__(self) -> None:
        self.chat_template = get_chat_template("default")

    def get_model_name(self) -> str:
        raise NotImplementedError(f"{type(self).__name__} names no model")

    def get_chat_template(self) -> ChatTemplate:
        """How roles become text in the transcript."""
        return self.chat_template

    def generate(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> tuple[str | list[str], Any]:
        """The answer to the transcript and its meta information; lists of `n` for n > 1."""
        raise NotImplementedError(f"{type(self).__name__} does not generate")

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        """The answer in pieces, each with the meta information so far. The transcript grows by
        the pieces while this runs, so the prompt must be taken before the first.
        """
        raise NotImplementedError(f"{type(self).__name__} does not stream")

    def select(
        self,
        s: Transcript,
        choices: Sequence[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod,
    ) -> ChoicesDecision:
        """Decides which text goes on with the transcript."""
        raise NotImplementedError(f"{type(self).__name__} does not score choices")

    def cache_prefix(self, prefix_str: str) -> None:
        """Hint, before a batch: all its programs begin with this text."""

    def uncache_prefix(self, prefix_str: str) -> None:
        """Hint, after that batch."""

    def commit_lazy_operations(self, s: Transcript) -> None:
        """Hint, before a fork: several requests will begin with the transcript."""

    def begin_program(self, s: Transcript) -> None:
        """A state, or a branch, begins."""

    def end_program(self, s: Transcript) -> None:
        """It has done all that was appended."""

    def end_request(self, rid: str) -> None:
        """The state of this `sid` asks nothing more."""

    def fork_program(
        self, src: Transcript, dst: Transcript, position_ids_offset: Sequence[int] | None = None
    ) -> None:
        """`dst` was made a copy of `src`. The offset is always None."""

    def fill_image(self, s: Transcript, images: Sequence[str]) -> None:
        """Images were added to the transcript."""

    def concatenate_and_append(self, src_rids: Sequence[str], dst_rid: str) -> None:
        """Joins states inside the server, where a backend can; see `support_concate_and_append`."""
        raise NotImplementedError(f"{type(self).__name__} does not join states")

    def flush_cache(self) -> None:
        """Empties the server's prefix cache."""
        raise NotImplementedError(f"{type(self).__name__} has no cache to flush")

    def get_server_info(self) -> dict[str, Any]:
        raise NotImplementedError(f"{type(self).__name__} tells nothing about its server")

    def shutdown(self) -> None:
        """Frees what the backend holds."""


def import_sdk(module: str, package: str, backend: str) -> Any:
    """A provider's own library, or one sentence that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the {backend} backend needs the package {package}, which cannot be imported "
            f"({error}); install it with: pip install {package}"
        ) from error


def chat_messages(s: Transcript, backend: str) -> list[dict[str, Any]]:
    """The messages to answer. A chat API cannot go on with a turn that has begun."""
    if s.cur_role != "assistant" or s.turn_text:
        raise ValueError(
            f"{backend} answers whole turns: sgl.gen must come right after sgl.assistant_begin(), "
            "or first in sgl.assistant(…)"
        )
    return list(s.messages_)
