"""The command line: `python -m unisono <command>`. Each command is a module here, imported when it is called."""

import argparse
import atexit
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from .. import _programs
from ..version import __version__

COMMANDS = {
    "launch": "start the workers of a cluster on this machine and run a script on them",
    "backups": "list backups and checkpoints, and check every byte of them",
    "profile": "capture a profile of running workers from another process",
    "report": "rewrite the report of a training run, or compare several runs on one page",
    "doctor": "show the versions, devices and cluster of this machine, and its problems",
}
_END = b"\0\n"  # of stderr
_USAGE = "\n".join(
    [
        "usage: python -m unisono <command> [options]\n\ncommands:",
        *(f"  {name:11}{what}" for name, what in COMMANDS.items()),
        "\n`python -m unisono <command> --help` explains a command; `--version` prints the version.",
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command with its arguments (None: those of this process); return the exit status."""
    _programs.release_flags(compiles=False)  # what `launch` starts may be any program
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if argv is None:  # this is the program: messages such as `failed call to cuInit` would bury its lines
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if sys.argv[1:2] != ["launch"]:  # whose workers import TensorFlow
            _hide_notices()
    try:
        try:
            return _run(argv)
        finally:
            sys.stdout.flush()
    except OSError as error:
        with open(
            os.devnull, "wb"
        ) as nothing:  # else Python writes what is left once more, and prints a traceback
            os.dup2(nothing.fileno(), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of the output, such as `head`, has ended
            return 128 + signal.SIGPIPE  # as a shell reports a program that this signal has ended
        print(f"unisono: write error: {error.strerror}", file=sys.stderr)
        return 1


def _hide_notices() -> None:
    """Let a process copy stderr without TensorFlow's notices, and what is printed while this process aborts, too."""
    reader, writer = os.pipe()
    if copier := os.fork():
        stderr = os.dup(2)
        os.dup2(writer, 2)
        os.close(reader)
        os.close(writer)

        def end() -> None:
            with contextlib.suppress(OSError):  # the copier was killed
                sys.stderr.flush()
                os.write(2, _END)  # a process that the command has left may hold the pipe
            os.dup2(stderr, 2)
            os.waitpid(copier, 0)

        atexit.register(end)
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the last lines are still to come
        signal.signal(number, signal.SIG_IGN)
    os.close(writer)
    with contextlib.suppress(BaseException), open(reader, "rb") as lines:
        from ..distribute.launcher.output import is_hidden

        for line in lines:
            text, ended, _ = line.partition(_END)
            if not is_hidden(text.decode("utf-8", "replace")):
                os.write(2, text)
            if ended:
                break
    os._exit(0)


def _run(argv: Sequence[str] | None) -> int:
    command, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if command in COMMANDS:
        with contextlib.suppress(AttributeError):  # names of files need be no text
            sys.stdout.reconfigure(errors="backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
        try:
            return _module(command).main(rest)
        except BrokenPipeError:
            raise
        except OSError as error:
            print(f"unisono {command}: {error}", file=sys.stderr)
            return 2
    if command == "--version":
        print(__version__)
        return 0
    if command not in ("", "-h", "--help", "help"):
        print(f"unisono: `{command}` is not a command.\n\n{_USAGE}", file=sys.stderr)
        return 2
    print(_USAGE)
    return 0 if command else 2


def _module(command: str) -> Any:
    return importlib.import_module(f".{command}", __package__)


def _complete() -> None:
    """Answer argcomplete, which asks for the shell's completions, and exit the process."""
    argcomplete: Any = importlib.import_module("argcomplete")
    parser = argparse.ArgumentParser("unisono")
    parser.add_argument("--version", action="store_true")
    commands = parser.add_subparsers()
    for name in COMMANDS:
        commands.add_parser(name, parents=[_module(name).PARSER], add_help=False)
    argcomplete.autocomplete(parser)
