"""`python -m unisono report`: the page of a training made again from its numbers, or of several, side by side."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .callbacks.report import find_runs, render


def main(argv: Sequence[str]) -> int:
    """Writes the page and prints where it is.

    Args:
        argv: list of str; the arguments after `report`.

    Returns:
        int; 0 if a page was written, 1 if no numbers were found, 2 if there is no such file or folder.
    """
    parser = argparse.ArgumentParser(prog="python -m unisono report", description=__doc__)
    parser.add_argument(
        "runs", type=Path, nargs="+", help="folders with the .jsonl files of TrainingReport, or such files"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="the page to write (default: report.html in the first folder)"
    )
    options = parser.parse_args(argv)
    found = []
    for place in options.runs:
        if not place.exists():
            print(f"unisono: {place} does not exist.", file=sys.stderr)
            return 2
        try:
            found.extend(find_runs(place))
        except ValueError as error:
            print(f"unisono: {error}", file=sys.stderr)
            return 1
    if not found:
        places = ", ".join(map(str, options.runs))
        print(f"unisono: no numbers of a training in {places}: TrainingReport writes them.", file=sys.stderr)
        return 1
    first = options.runs[0]
    output = options.output or (first if first.is_dir() else first.parent) / "report.html"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(found), encoding="utf-8")
    print(f"{output}: {len(found)} training{'s' * (len(found) > 1)}")
    return 0
