"""Reasoning and answer."""

import pytest

from sglang.lang.reasoning import MARKS, split_reasoning


@pytest.mark.parametrize(
    "text, reasoning, answer",
    [
        ("<think>why</think>\n\nbecause", "why", "because"),
        ("why\n</think>because", "why", "because"),  # the template wrote the opening mark
        ("<think>no end", "no end", ""),
        ("just an answer", "", "just an answer"),
    ],
)
def test_marks_tell_reasoning_from_answer(text: str, reasoning: str, answer: str) -> None:
    assert split_reasoning(text, None) == (reasoning, answer)


@pytest.mark.parametrize("model_type", MARKS)
def test_every_model_type_has_its_marks(model_type: str) -> None:
    start, end = MARKS[model_type]
    assert split_reasoning(f"{start}a{end}b", model_type) == ("a", "b")
