"""`python -m unisono doctor`: what this machine offers for training, and what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from ..distribute.environment import LONGEST_TIMEOUT
from .machine.findings import PROBE_SECONDS, Finding, examine
from .parser import Parser, at_least

PARSER = Parser(
    "doctor",
    "Show the versions, devices and cluster of this machine, and its problems.",
    examples=["--timeout 60", "--json > findings.json"],
    exit_codes={0: "nothing is wrong", 1: "a problem was found"},
)
_add = PARSER.add_argument
_add("--json", action="store_true", help="print the findings as JSON, for other programs")
_add(
    "--timeout",
    type=at_least(float, 1, LONGEST_TIMEOUT),
    default=PROBE_SECONDS,
    metavar="SECONDS",
    help="time for TensorFlow to start and to run an all-reduce (default: %(default)g)",
)


def main(argv: Sequence[str]) -> int:
    """Prints the findings; returns 0 if nothing is wrong, 1 if something is."""
    options = PARSER.parse_args(argv)
    findings = examine(probe_seconds=options.timeout)
    if options.json:
        print(json.dumps([dataclasses.asdict(f) for f in findings], indent=1))
    else:
        print(as_text(findings))
    return int(any(f.problem for f in findings))


def as_text(findings: Sequence[Finding]) -> str:
    """The findings in columns, by section, and a last line that counts the problems."""
    lines, section = [], ""
    width = max(len(f.name) for f in findings)
    for f in findings:
        if f.section != section:
            section = f.section
            lines.append(f"\n{section}" if lines else section)
        lines.append(f" {'!' if f.problem else ' '} {f.name:{width}}  {f.value}")
        lines.extend(f"   {'':{width}}  {text}" for text in (f.problem, f.note) if text)
    problems = [f for f in findings if f.problem]
    summary = "nothing is wrong"
    step = (
        "in your program, build the model under `unisono.distribute.auto_strategy()` and call "
        "`model.fit(..., fast_dev_run=True)`, which runs one step of everything"
    )
    if problems:
        summary = f"{len(problems)} problem{'s' * (len(problems) > 1)}, marked with !"
        step = (
            f"fix `{problems[0].name}` ({problems[0].section}) as the line below it says, then run this again"
        )
    return "\n".join([*lines, "", summary, f"next: {step}"])
