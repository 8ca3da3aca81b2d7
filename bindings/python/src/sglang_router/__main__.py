"""`python -m sglang_router` is `smg`."""

import sys

from sglang_router.cli import main

if __name__ == "__main__":
    sys.exit(main())
