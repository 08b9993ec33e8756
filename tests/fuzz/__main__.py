"""`python -m tests.fuzz`: draws and checks cases for a given time, and shrinks the failing ones."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from .case import Case, read, written
from .check import Finding, check
from .draw import draw
from .excluded import excluded
from .rules import takes_long
from .shrink import shrink

COMMAND = "python -m tests.fuzz"


def main(words: list[str] | None = None) -> int:
    """Returns 1 if a case fails."""
    arguments = _parser().parse_args(words)
    _make_devices()
    if arguments.case:
        return _report(read(arguments.case), arguments)
    given = dict(map(_given, arguments.only))
    seed, wrong = arguments.seed, 0
    until = time.monotonic() + 60 * arguments.minutes

    def is_wanted(case: Case) -> bool:
        long = arguments.long or "strategy" in given or not takes_long(case)
        return long and (arguments.all or excluded(case) is None)

    while True:
        case = draw(seed, accepts=is_wanted, given=given)
        wrong += _report(case, arguments)
        seed += 1
        if time.monotonic() > until:
            print(f"{seed - arguments.seed} cases, {wrong} wrong")
            return int(wrong > 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(COMMAND, description=__doc__)
    parser.add_argument("--minutes", type=float, default=0.0, help="how long to draw cases; 0: one case")
    parser.add_argument("--seed", type=int, default=0, help="the first seed; the others follow")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FIELD=VALUE", help="set a field: strategy=..."
    )
    parser.add_argument("--case", help='a case as it was printed: "Case(...)"')
    parser.add_argument("--all", action="store_true", help="include known failures (excluded.py)")
    parser.add_argument("--long", action="store_true", help="include workers, which are processes")
    parser.add_argument("--keep", action="store_true", help="do not shrink")
    parser.add_argument("--findings", type=Path, help="append failures to this file")
    return parser


def _make_devices() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)


def _given(text: str) -> tuple[str, Any]:
    """A field and its value from `field=value`; numbers and tuples are written as in Python."""
    name, _, value = text.partition("=")
    fields = {field.name: field for field in dataclasses.fields(Case)}
    if name not in fields:
        raise SystemExit(f"--only {text}: there is no field {name!r}; give one of {', '.join(fields)}")
    kind = type(fields[name].default)
    return name, value if kind is str else eval(value)


def _report(case: Case, arguments: argparse.Namespace) -> int:
    """Checks a case and prints its failure; returns whether there is one."""
    finding = check(case)
    if finding is None:
        return 0
    text = described(case, finding, case)
    if not arguments.keep:
        text = shrunk_report(case, finding, check)
    print(text, flush=True)
    if arguments.findings:
        with arguments.findings.open("a", encoding="utf-8") as file:
            file.write(f"\n```\n{text}\n```\n")
    return 1


def shrunk_report(case: Case, finding: Finding, check: Callable[[Case], Finding | None]) -> str:
    """The failure of the smallest case that fails for the same reason."""
    found = {case: finding}

    def is_wrong(candidate: Case) -> bool:
        found[candidate] = check(candidate)
        return found[candidate] is not None and found[candidate].kind == finding.kind

    smallest = shrink(case, is_wrong)
    return described(case, found[smallest], smallest)


def described(case: Case, finding: Finding, smallest: Case) -> str:
    """A finding as text, with the commands that reproduce it."""
    return "\n".join(
        [
            f"seed {case.seed}: {finding.kind}",
            finding.details.rstrip()[-3000:],
            f'{COMMAND} --case "{written(smallest)}"',
            f"{COMMAND} --all --long --seed {case.seed}  # {written(case)}",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
