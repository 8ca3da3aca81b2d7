"""Tells a model's reasoning from its answer, by the marks that models put around it."""

_THINK = ("<think>", "</think>")
MARKS = {
    "deepseek-r1": _THINK,
    "deepseek-v3": _THINK,
    "glm45": _THINK,
    "kimi": ("◁think▷", "◁/think▷"),
    "qwen3": _THINK,
    "qwen3-thinking": _THINK,
    "step3": _THINK,
}
DEFAULT_MODEL_TYPE = "deepseek-r1"


def check_model_type(model_type: str | None) -> str:
    """The model type, or the default for None. Raises for an unknown one."""
    name = (model_type or DEFAULT_MODEL_TYPE).lower()
    if name not in MARKS:
        raise ValueError(f"unknown model_type {model_type!r}; allowed: {', '.join(sorted(MARKS))}")
    return name


def split_reasoning(text: str, model_type: str | None) -> tuple[str, str]:
    """Reasoning and answer. The opening mark may be missing: templates often write it."""
    start, end = MARKS[check_model_type(model_type)]
    thought, found, answer = text.partition(end)
    opened = thought.lstrip().startswith(start)
    if not found and not opened:
        return "", text
    reasoning = thought.lstrip().removeprefix(start) if opened else thought
    return reasoning.strip(), answer.lstrip("\n")
