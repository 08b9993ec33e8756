"""The parser of a command's arguments: `--help` with examples and exit codes, and a wrong argument as one sentence."""

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

_LONGEST = 400  # characters of a message: a value may have any number


def local(text: str) -> Path:
    """Return the type of an argument that is a file or a folder."""
    from ..distribute.storage import local_path  # imports NumPy, which `--help` need not wait for

    return _check(local_path, text)


def place(text: str) -> Any:
    """Return the type of an argument that is a file or a folder, local or in a store."""
    from ..distribute.storage import storage_path  # imports NumPy, which `--help` need not wait for

    return _check(storage_path, text)


def _check(path_of: Callable[[str, str], Any], text: str) -> Any:
    try:
        return path_of("path", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def at_least(kind: Callable[[str], Any], least: float, most: float = math.inf) -> Callable[[str], Any]:
    """Return the type of an argument that is a number in a range: neither NaN nor infinite."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not least <= value <= most or value == math.inf:
            bounds = f"at least {least}" if most == math.inf else f"from {least} to {most:,.0f}"
            raise argparse.ArgumentTypeError(f"must be {bounds}, received {text[:40]}")
        return value

    parse.__name__ = "whole number" if kind is int else "number"
    return parse


def columns(rows: Sequence[Sequence[str]], align: Callable[[str, int], str] = str.ljust) -> list[str]:
    """Return the lines of a table: its first column on the left, the others as `align` says."""
    first, *others = (max(map(len, column)) for column in zip(*rows))
    return ["  ".join([row[0].ljust(first), *map(align, row[1:], others)]).rstrip() for row in rows]


class Parser(argparse.ArgumentParser):
    """The parser of one command; `examples` holds its arguments in each example."""

    def __init__(
        self,
        command: str,
        purpose: str,
        examples: Sequence[str],
        exit_codes: Mapping[int, str],
        details: str = "",
    ) -> None:
        prog = f"python -m unisono {command}"
        codes = {**exit_codes, 2: exit_codes.get(2, "an argument is wrong")}
        epilog = [
            *([details, ""] if details else []),
            "examples:",
            *(f"  {prog} {example}" for example in examples),
            "\nexit codes:",
            *(f"  {code}  {codes[code]}" for code in sorted(codes)),
        ]
        super().__init__(
            prog=prog,
            description=purpose,
            epilog="\n".join(epilog),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Exit the process with status 2."""
        message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
        self.exit(self.fail(f"{message.rstrip('.')}; see `{self.prog} --help`.", 2))

    def fail(self, message: str, status: int) -> int:
        """Print why the command failed; return `status`."""
        print(f"{self.prog.removeprefix('python -m ')}: {message}", file=sys.stderr)
        return status

    def make_folder(self, argument: str, folder: Path) -> None:
        """Make a folder that an argument names, or exit the process with the reason why that fails."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            self.error(f"{argument} must be a folder. Received the file {str(folder)!r}")
        except OSError as error:
            self.error(f"{argument}: the folder {str(folder)!r} cannot be created ({error.strerror})")
