"""`python -m unisono report`: the page of a training, written again from its numbers, or of several side by side."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from .parser import Parser, local


def main(argv: Sequence[str]) -> int:
    """Writes the page and prints its path; returns 0, 1 if there are no numbers, 2 if a file is missing or not a report."""
    parser = Parser(
        prog="python -m unisono report",
        description="Write the page of a training again from its numbers, or one page that compares several.",
    )
    runs_help = "folders with the .jsonl files of TrainingReport, or such files"
    output_help = "the page to write (default: report.html in the first folder)"
    parser.add_argument("runs", type=local, nargs="+", help=runs_help)
    parser.add_argument("-o", "--output", type=local, help=output_help)
    options = parser.parse_args(argv)
    for place in options.runs:
        if not os.path.exists(place):
            return _failed(f"{place} does not exist.", 2)
    from ..callbacks import SaveError
    from ..callbacks.report import (  # imports TensorFlow, which `--help` need not wait for
        find_runs,
        is_page,
        render,
    )
    from ..callbacks.safe_file import check_overwrite

    try:
        found = [run for place in options.runs for run in find_runs(place)]
    except ValueError as error:
        return _failed(str(error), 2)
    for run in found:
        try:
            render([run]).encode()
        except Exception as error:  # the lines may say anything
            said = f"{type(error).__name__}: {str(error)[:100]!a}"
            return _failed(f"{run.path} is not a report of TrainingReport, or was changed ({said}).", 2)
    if not found:
        places = ", ".join(map(str, options.runs))
        return _failed(f"there are no numbers of a training in {places}: TrainingReport writes them.", 1)
    first = options.runs[0]
    output = options.output or (first if first.is_dir() else first.parent) / "report.html"
    parser.make_folder("--output", output.parent)
    if output.is_dir():
        parser.error(f"--output must be a file. Received the folder {str(output)!r}")
    try:
        check_overwrite("--output", output, is_page)
        output.write_text(render(found), encoding="utf-8")
    except SaveError as error:
        return _failed(str(error), 2)
    except OSError as error:
        return _failed(f"{output} cannot be written ({error.strerror}): name another page with --output.", 1)
    print(f"{output}: {len(found)} training{'s' * (len(found) > 1)}")
    return 0


def _failed(message: str, status: int) -> int:
    print(f"unisono report: {message}", file=sys.stderr)
    return status
