"""`sglang completions SHELL`: completion of commands and flags for a shell."""

import sys
from collections.abc import Sequence

SHELLS = ("bash", "zsh", "fish")
HELP = """usage: sglang completions {bash,zsh,fish}

bash: eval "$(sglang completions bash)"    zsh: the same with zsh    fish: … fish | source"""


def run(argv: Sequence[str]) -> int:
    if list(argv) in (["-h"], ["--help"]):
        print(HELP)
        return 0
    if len(argv) != 1 or argv[0] not in SHELLS:
        given = " ".join(argv) or "nothing"
        print(f"sglang completions: expected one of {', '.join(SHELLS)}, got {given}",
              file=sys.stderr)  # fmt: skip
        return 2
    print(script(argv[0]))
    return 0


def script(shell: str) -> str:
    """The completion script of a shell, made from the commands and options that exist."""
    from sglang.cli.main import COMMANDS
    from sglang.srt.arg_groups.declaration import options_of
    from sglang.srt.entrypoints.front_door import front_door_options
    from sglang.srt.server_args import ServerArgs

    options = [*options_of(ServerArgs), *front_door_options()]
    flags = " ".join(sorted({flag for option in options for flag in option.flags} | {"--config"}))
    commands = " ".join(COMMANDS)
    if shell == "fish":
        lines = [f"complete -c sglang -n __fish_use_subcommand -a '{commands}'"]
        lines += [f"complete -c sglang -l {flag[2:]}" for flag in flags.split()]
        return "\n".join(lines)
    lines = [
        "_sglang() {",
        '  local words="' + commands + '"',
        '  [ "$COMP_CWORD" -gt 1 ] && words="' + flags + '"',
        '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
        "}",
        "complete -o default -F _sglang sglang",
    ]
    if shell == "zsh":
        lines.insert(0, "autoload -U +X bashcompinit && bashcompinit")
    return "\n".join(lines)
