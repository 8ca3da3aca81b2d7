"""`sglang completions SHELL`: completion of commands and flags for a shell."""

import re
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
    from sglang.cli.serve_backends import MODEL_TYPE_FLAG
    from sglang.srt.arg_groups.declaration import options_of
    from sglang.srt.entrypoints.front_door import front_door_options
    from sglang.srt.server_args import ServerArgs

    options = [*options_of(ServerArgs), *front_door_options()]
    own = {"--config", MODEL_TYPE_FLAG}
    flags = " ".join(sorted({flag for option in options for flag in option.flags} | own))
    commands = " ".join(COMMANDS)
    backends = " ".join(_backend_names())
    if shell == "fish":
        lines = [f"complete -c sglang -n __fish_use_subcommand -a '{commands}'"]
        lines += [f"complete -c sglang -l {flag[2:]}" for flag in flags.split()]
        lines.append(f"complete -c sglang -l {MODEL_TYPE_FLAG[2:]} -x -a '{backends}'")
        return "\n".join(lines)
    lines = [
        "_sglang() {",
        '  local words="' + commands + '"',
        '  [ "$COMP_CWORD" -gt 1 ] && words="' + flags + '"',
        '  local before="${COMP_WORDS[COMP_CWORD-1]}"',
        f'  [ "$before" = {MODEL_TYPE_FLAG} ] && words="{backends}"',
        '  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))',
        "}",
        "complete -o default -F _sglang sglang",
    ]
    if shell == "zsh":
        lines.insert(0, "autoload -U +X bashcompinit && bashcompinit")
    return "\n".join(lines)


def _backend_names() -> list[str]:
    """Values of `--model-type`; a plugin's name that a shell might run is left out."""
    from sglang.cli.builtin_backends import BUILTIN_BACKENDS
    from sglang.cli.serve_backends import AUTO, ServeBackendError, ServeBackendRegistry

    try:
        names = ServeBackendRegistry(BUILTIN_BACKENDS).available_names
    except ServeBackendError:  # a plugin took a built-in name; `sglang serve` says so
        names = tuple(BUILTIN_BACKENDS)
    return [AUTO, *(name for name in names if re.fullmatch(r"[\w.-]+", name))]
