"""A backend without a server: answers by a function of the prompt, and remembers its calls."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sglang.lang.backend.base_backend import BaseBackend
from sglang.lang.chat_template import get_chat_template
from sglang.lang.choices import ChoiceScores, ChoicesDecision, ChoicesSamplingMethod
from sglang.lang.ir import SglSamplingParams
from sglang.lang.transcript import Transcript

GUARD = 30.0  # seconds, against hangs


class FakeBackend(BaseBackend):
    """`answer(prompt)` is the model; with `gate` it waits before each answer."""

    def __init__(
        self,
        answer: Callable[[str], str | list[str]] = lambda prompt: "answer",
        chat_template: str = "default",
        is_chat_model: bool = False,
    ) -> None:
        super().__init__()
        self.chat_template = get_chat_template(chat_template)
        self.is_chat_model = is_chat_model
        self.answer = answer
        self.calls: list[tuple[str, Any]] = []
        self.params: list[SglSamplingParams] = []
        self.gate: threading.Event | threading.Barrier | None = None
        self._lock = threading.Lock()

    def called(self, name: str) -> list[Any]:
        return [detail for call, detail in self.calls if call == name]

    def generate(self, s: Transcript, sampling_params: SglSamplingParams) -> tuple[Any, Any]:
        prompt = s.text_
        self._note("generate", prompt)
        self.params.append(sampling_params)
        if self.gate is not None:
            self.gate.wait(GUARD)
        return self.answer(prompt), {"prompt": prompt}

    def generate_stream(
        self, s: Transcript, sampling_params: SglSamplingParams
    ) -> Iterator[tuple[str, Any]]:
        answer, _ = self.generate(s, sampling_params)
        for count, letter in enumerate(answer, 1):
            yield letter, {"count": count}

    def select(
        self,
        s: Transcript,
        choices: Sequence[str],
        temperature: float,
        choices_method: ChoicesSamplingMethod,
    ) -> ChoicesDecision:
        """The likelier a choice, the longer it is."""
        self._note("select", (s.text_, list(choices)))
        tokens = [[(float(len(choice)), 1, choice)] for choice in choices]
        return choices_method(ChoiceScores(choices, tokens, [[] for _ in choices]))

    def cache_prefix(self, prefix_str: str) -> None:
        self._note("cache_prefix", prefix_str)

    def uncache_prefix(self, prefix_str: str) -> None:
        self._note("uncache_prefix", prefix_str)

    def commit_lazy_operations(self, s: Transcript) -> None:
        self._note("commit", s.text_)

    def begin_program(self, s: Transcript) -> None:
        self._note("begin", s)

    def end_program(self, s: Transcript) -> None:
        self._note("end", s)

    def end_request(self, rid: str) -> None:
        self._note("end_request", rid)

    def fork_program(
        self, src: Transcript, dst: Transcript, position_ids_offset: Sequence[int] | None = None
    ) -> None:
        self._note("fork", position_ids_offset)

    def fill_image(self, s: Transcript, images: Sequence[str]) -> None:
        self._note("image", list(images))

    def flush_cache(self) -> None:
        self._note("flush", None)

    def get_server_info(self) -> dict[str, Any]:
        return {"fake": True}

    def _note(self, name: str, detail: Any) -> None:
        with self._lock:
            self.calls.append((name, detail))


def failing(message: str) -> Callable[[str], str]:
    """A model that fails."""

    def answer(prompt: str) -> str:
        raise RuntimeError(message)

    return answer
