"""`python -m sglang.launch_server`: one worker with its own HTTP server."""

import sys

from sglang.srt import plugins
from sglang.srt.entrypoints.launch import main
from sglang_router.output import may_go_unread

if __name__ == "__main__":
    plugins.load_plugins()  # first, so that hooks on the options' parser and class count
    with may_go_unread():
        sys.exit(main(sys.argv[1:]))
