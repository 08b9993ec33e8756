"""`python -m unisono report`: the report of a training run, written again from its numbers, or of several on one page."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .parser import Parser, local

if TYPE_CHECKING:
    from ..callbacks.report import Run


PARSER = Parser(
    "report",
    "Rewrite the report of a training run from its numbers, or compare several runs on one page.",
    examples=["runs/", "a.jsonl b.jsonl --output both.html"],
    exit_codes={
        0: "the page was written, and its path printed",
        1: "there are no numbers, or the page cannot be written",
        2: "an argument is wrong, or a file is missing or not a report",
    },
)
_add = PARSER.add_argument
_add("runs", type=local, nargs="+", help="folders with the .jsonl files of TrainingReport, or such files")
_add("-o", "--output", type=local, help="the page to write (default: report.html in the first folder)")


def main(argv: Sequence[str]) -> int:
    """Writes the page and prints its path; returns the status that `--help` explains."""
    options, failed = PARSER.parse_args(argv), PARSER.failed
    for place in options.runs:
        if not os.path.exists(place):
            return failed(f"{place} does not exist.", 2)
    from ..callbacks import SaveError  # imports TensorFlow, which `--help` need not wait for
    from ..callbacks.report import PAGE, check_installed, find_runs
    from ..callbacks.safe_file import check_overwrite

    try:
        check_installed()
        found = [run for place in options.runs for run in find_runs(place)]
    except (ImportError, ValueError) as error:
        return failed(str(error), 2)
    if not found:
        places = ", ".join(map(str, options.runs))
        return failed(f"there are no numbers of a training run in {places}: TrainingReport writes them.", 1)
    first = options.runs[0]
    output = options.output or (first if first.is_dir() else first.parent) / "report.html"
    PARSER.make_folder("--output", output.parent)
    if output.is_dir():
        PARSER.error(f"--output must be a file. Received the folder {str(output)!r}")
    try:
        check_overwrite("--output", output, PAGE)
        output.write_bytes(_page(found))
    except (SaveError, ValueError) as error:
        return failed(str(error), 2)
    except OSError as error:
        return failed(f"{output} cannot be written ({error.strerror}): name another page with --output.", 1)
    print(f"{output}: {len(found)} training run{'s' * (len(found) > 1)}")
    return 0


def _page(runs: Sequence[Run]) -> bytes:
    from ..callbacks.report import render

    try:
        return render(runs).encode()
    except Exception as error:  # the lines may say anything
        if len(runs) == 1:
            said = f"{runs[0].path} is not a report of TrainingReport, or was changed"
            raise ValueError(f"{said} ({type(error).__name__}: {str(error)[:100]!a}).") from None
        for run in runs:
            _page([run])
        raise
