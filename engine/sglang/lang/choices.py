"""How `select` decides between texts, from the log-probabilities of their tokens."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# `[logprob or null, token id, text or null]`, as the server writes it.
LogprobTriple = Sequence[Any]


@dataclass
class ChoicesDecision:
    """The text that was chosen, and the numbers that led to it."""

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ChoiceScores:
    """What is known about each choice, in the order of the choices."""

    choices: Sequence[str]
    # The tokens of each choice, scored behind the prompt.
    input_token_logprobs: Sequence[Sequence[LogprobTriple]]
    # What the server generated behind each choice; empty when nothing was.
    output_token_logprobs: Sequence[Sequence[LogprobTriple]]
    # The same tokens without the prompt, if the method needs them.
    unconditional_token_logprobs: Sequence[Sequence[LogprobTriple]] | None = None

    def means(self) -> list[float]:
        return [_mean(_logprobs(tokens)) for tokens in self.input_token_logprobs]


class ChoicesSamplingMethod(ABC):
    """A way to decide."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether the choices must also be scored without the prompt; costs a request more."""
        return False

    @abstractmethod
    def __call__(self, scores: ChoiceScores) -> ChoicesDecision:
        """Decides. There is at least one choice, and each has at least one token."""


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The highest mean log-probability of a choice's tokens."""

    def __call__(self, scores: ChoiceScores) -> ChoicesDecision:
        means = scores.means()
        return _decision(scores, _best(means), means)


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token, keeps the choices whose next token is likeliest.

    A choice that is shorter than the longest goes on with its own mean.
    """

    def __call__(self, scores: ChoiceScores) -> ChoicesDecision:
        means = scores.means()
        rows = [_logprobs(tokens) for tokens in scores.input_token_logprobs]
        width = max(map(len, rows))
        matrix = [row + [mean] * (width - len(row)) for row, mean in zip(rows, means, strict=True)]
        left = list(range(len(rows)))
        for column in range(width):
            best = max(matrix[index][column] for index in left)
            left = [index for index in left if matrix[index][column] == best]
        return _decision(scores, left[0], means, greedy_logprob_matrix=matrix)


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice whose tokens the prompt makes likelier by most, on average."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        return True

    def __call__(self, scores: ChoiceScores) -> ChoicesDecision:
        alone = scores.unconditional_token_logprobs
        assert alone is not None, "the backend scores the choices without the prompt"
        gains = [
            _mean([a - b for a, b in zip(_logprobs(tokens), _logprobs(base), strict=True)])
            for tokens, base in zip(scores.input_token_logprobs, alone, strict=True)
        ]
        return _decision(
            scores, _best(gains), scores.means(), normalized_unconditional_prompt_logprobs=gains
        )


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def _logprobs(tokens: Sequence[LogprobTriple]) -> list[float]:
    # The first token of a text has none; it counts as certain.
    return [0.0 if token[0] is None else float(token[0]) for token in tokens]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _best(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)


def _decision(scores: ChoiceScores, index: int, means: list[float], **more: Any) -> ChoicesDecision:
    return ChoicesDecision(
        decision=scores.choices[index],
        meta_info={
            "normalized_prompt_logprobs": means,
            "input_token_logprobs": list(scores.input_token_logprobs),
            "output_token_logprobs": list(scores.output_token_logprobs),
            **more,
        },
    )
