"""`python -m unisono completion`: what makes a shell complete the commands of `unisono` and their options."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import re
from collections.abc import Mapping, Sequence

from . import COMMANDS
from .parser import Parser

_HELP = """
Put it where your shell reads it:  bash: echo 'eval "$(unisono completion bash)"' >> ~/.bashrc;
zsh: echo 'eval "$(unisono completion zsh)"' >> ~/.zshrc;
fish: unisono completion fish > ~/.config/fish/completions/unisono.fish
"""
_BASH = """_unisono() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands} --help --version"
    else
        case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
        esac
        if [ -z "$words" ]; then
            case "${{COMP_WORDS[1]}}" in
{options}
            esac
            case "$word" in -*) ;; *) words="" ;; esac
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _unisono unisono
"""
_ZSH = "autoload -Uz compinit bashcompinit && compinit -C && bashcompinit\n"


def main(argv: Sequence[str]) -> int:
    """Prints the script; returns 0."""
    parser = Parser(
        prog="python -m unisono completion",
        description="Print what makes a shell complete the commands of `unisono`, their options and file names.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell that is to complete them")
    shell = parser.parse_args(argv).shell
    options = {name: options_of(name) for name in COMMANDS}
    if shell == "fish":
        print(fish(COMMANDS, options), end="")
    else:
        print((_ZSH if shell == "zsh" else "") + bash(options), end="")
    return 0


def options_of(command: str) -> dict[str, list[str]]:
    """The long options of a command, each with the values that it is limited to: as `--help` names them."""
    module = importlib.import_module(f".{command}", __package__)
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        module.main(["--help"])
    lines = re.findall(r"^  (?:-\w(?: \S+)?, )?(--[\w-]+)(?: \{([\w,]+)\})?", text.getvalue(), re.MULTILINE)
    return {option: values.split(",") if values else [] for option, values in lines}


def bash(options: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """The function and its registration, for bash and zsh."""
    limited = {name: values for each in options.values() for name, values in each.items() if values}
    return _BASH.format(
        commands=" ".join(options),
        values="\n".join(f'            {name}) words="{" ".join(v)}" ;;' for name, v in limited.items())
        or "            *) ;;",
        options="\n".join(
            f'                {name}) words="{" ".join(each)}" ;;' for name, each in options.items()
        ),
    )


def fish(commands: Mapping[str, str], options: Mapping[str, Mapping[str, Sequence[str]]]) -> str:
    """One line for each command and option."""
    lines = [
        f"complete -c unisono -n __fish_use_subcommand -f -a {name} -d '{_quoted(what)}'"
        for name, what in commands.items()
    ]
    for command, each in options.items():
        for option, values in each.items():
            limited = f" -x -a '{' '.join(values)}'" if values else ""
            seen = f"'__fish_seen_subcommand_from {command}'"
            lines.append(f"complete -c unisono -n {seen} -l {option.removeprefix('--')}{limited}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")
