"""`sglang serve MODEL [options]`: `python -m sglang.launch_server --model-path MODEL …`."""

from collections.abc import Sequence


def run(argv: Sequence[str]) -> int:
    from sglang.srt.entrypoints import launch  # loads gRPC, which other commands do without

    return launch.main(with_model_flag(argv), prog="sglang serve")


def with_model_flag(argv: Sequence[str]) -> list[str]:
    """`demo --port 1` → `--model-path demo --port 1`."""
    if argv and not argv[0].startswith("-"):
        return ["--model-path", *argv]
    return list(argv)
