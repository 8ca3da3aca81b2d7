"""`python -m sglang.launch_server`: one worker with its own HTTP server."""

import sys

from sglang.srt.entrypoints.launch import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
