"""Several answers from one call of an API: `@sgl.function(num_api_spec_tokens=N)`.

The model is asked for N tokens without stop strings. What it writes beyond an answer is kept and
serves the expressions that follow, as long as it agrees with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sglang.lang.ir import SglGen, SglSamplingParams

MAX_TRIES = 3  # calls for one chat turn, until the answer follows the turn's pattern
# What `run` may ask for and an answer that is cut out of a longer one cannot have.
_NEVER_AHEAD = (
    "n", "return_logprob", "logprob_start_len", "top_logprobs_num", "return_text_in_logprobs",
)  # fmt: skip
_NAMES_IN_GEN = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}


def check_own_parameters(expr: SglGen, default: SglSamplingParams) -> None:
    """Several answers share one call, so none has sampling parameters of its own but its stops."""
    odd = {
        **{name: value for name, value in default.changed().items() if name in _NEVER_AHEAD},
        **{name: value for name, value in expr.overrides.items() if name != "stop"},
    }
    if odd:
        given = ", ".join(f"{_NAMES_IN_GEN.get(name, name)}={odd[name]!r}" for name in odd)
        raise ValueError(
            f"with num_api_spec_tokens one call gives several answers, so this gen cannot have "
            f"{given}; allowed: stop. Give other sampling parameters to run(), or leave "
            "num_api_spec_tokens out"
        )


@dataclass
class TextAhead:
    """For completion models: text that the model wrote ahead of the program."""

    window: int  # tokens
    text: str = ""

    def fill(self, text: str) -> None:
        """The program says `text` itself."""
        self.text = self.text[len(text) :] if self.text.startswith(text) else ""

    def answer(self, stops: Sequence[str], ask: Callable[[int], str]) -> str | None:
        """Text up to the first stop string; None when there is none, and nothing is kept."""
        if not stops:
            self.text = ""
            return None
        text = self.text or ask(self.window)
        cut = _first_stop(text, stops)
        if cut is None:
            self.text = ""
            return None
        self.text = text[cut:]
        return text[:cut]


@dataclass
class TurnAhead:
    """For chat models: an assistant turn, collected while it is open and asked for at its end."""

    window: int
    parts: list["str | tuple[SglGen, list[str]]"] = field(default_factory=list)

    def add_text(self, text: str) -> None:
        self.parts.append(text)

    def add_gen(self, expr: SglGen, stops: list[str]) -> None:
        self.parts.append((expr, stops))

    def ask(self, ask: Callable[[int], str]) -> list[tuple[str, SglGen | None]]:
        """The turn's pieces, with the expression that each answers, and no parts left."""
        parts, self.parts = self.parts, []
        if all(isinstance(part, str) for part in parts):
            return [(part, None) for part in parts if isinstance(part, str)]
        answer = ""
        for _ in range(MAX_TRIES):
            answer = ask(self.window)
            if (pieces := match_turn(answer, parts)) is not None:
                return pieces
        raise ValueError(
            f"the model's turn does not follow the program's, after {MAX_TRIES} tries; show it "
            f"examples, or leave num_api_spec_tokens out. Its last turn was {answer!r}"
        )


def match_turn(
    text: str, parts: "Sequence[str | tuple[SglGen, list[str]]]"
) -> list[tuple[str, SglGen | None]] | None:
    """Cuts a turn at the program's own texts and stop strings; None where it does not fit.

    Blanks around the program's texts may differ: models seldom repeat them exactly.
    """
    pieces: list[tuple[str, SglGen | None]] = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            wanted = part.strip()
            rest = text.lstrip()
            if not rest.startswith(wanted):
                return None
            text = rest[len(wanted) :]
            pieces.append((part, None))
            continue
        expr, stops = part
        follower = parts[index + 1] if index + 1 < len(parts) else ""
        ends = [*stops, follower.strip() if isinstance(follower, str) else ""]
        cut = _first_stop(text, [end for end in ends if end])
        if cut is None and index + 1 < len(parts):
            return None
        pieces.append((text[:cut], expr))
        text = "" if cut is None else text[cut:]
    return pieces


def _first_stop(text: str, stops: Sequence[str]) -> int | None:
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    return min(places, default=None)
