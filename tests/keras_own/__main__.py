"""`python -m tests.keras_own`: all of Keras' own tests of trainer, callbacks and optimizers, with our classes."""

from __future__ import annotations

import subprocess
import sys
import time

from .expected import ALONE, CANNOT_HOLD, PACKAGES, TRAINER


def run_here(names: list[str]) -> int:
    """Runs the tests of some modules; returns the number of modules with unexpected results."""
    from .substitution import cases, names_in, run

    wrong = 0
    for name in names:
        begin, found = time.monotonic(), cases(name)
        result = run([case(test) for case in found for test in names_in(case)])
        failed = {test.id().removeprefix(f"{name}."): text for test, text in result.failures + result.errors}
        kinds = tuple(f"{case.__name__}." for case in found)
        unexpected = [test for test in failed if not test.startswith(tuple(CANNOT_HOLD))]
        holds = [
            each
            for each in CANNOT_HOLD
            if each.startswith(kinds) and not any(t.startswith(each) for t in failed)
        ]
        counts = f"{result.testsRun} run, {len(result.skipped)} skipped, {len(failed)} do not hold"
        print(f"{name}: {counts} ({time.monotonic() - begin:.0f} s)", flush=True)
        for test in unexpected:
            print(f"{test} should hold:\n{failed[test]}")
        for test in holds:
            print(f"{test} holds: take it out of the list")
        wrong += bool(unexpected or holds or not found)
    return wrong


def main() -> int:
    """Runs all tests; each module of `ALONE` in a separate process."""
    from .substitution import modules

    together = [name for name in modules(PACKAGES) if name not in ALONE] + [TRAINER]
    commands = [together, *([name] for name in ALONE)]
    return sum(
        subprocess.run([sys.executable, "-m", "tests.keras_own", *names]).returncode for names in commands
    )


if __name__ == "__main__":
    sys.exit(run_here(sys.argv[1:]) if sys.argv[1:] else main())
