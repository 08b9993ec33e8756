"""The command line: `python -m unisono <command>`. Each command is a module of its own, imported when it is asked for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

COMMANDS = {
    "launch": "start the workers of a cluster on this machine and run a script on them",
    "backups": "list backups and checkpoints, and check every byte of them",
    "profile": "capture a profile of running workers, from outside",
    "report": "make a readable report of a run",
    "doctor": "say what this machine offers and what is wrong with it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the command and its arguments; None: those of this process.

    Returns:
        The exit status.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from .version import __version__

        print(__version__)
        return 0
    command, *rest = arguments
    if command not in COMMANDS:
        print(f"unisono: `{command}` is not a command.\n\n{usage()}", file=sys.stderr)
        return 2
    return importlib.import_module(f".cli_{command}", __package__).main(rest)


def usage() -> str:
    """The help text, one line for each command."""
    lines = [f"  {name:10}{what}" for name, what in COMMANDS.items()]
    head = "usage: python -m unisono <command> [options]\n\ncommands:\n"
    return head + "\n".join(lines) + "\n\n`python -m unisono <command> --help` explains a command."
