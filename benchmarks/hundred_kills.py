"""Kills training runs with SIGKILL at random moments, resumes them, and compares the results bit-for-bit."""

from __future__ import annotations

import argparse
import collections
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import kill_driver
from forked import Forked


def main() -> int:
    """Returns 1 if a killed run differs from the uninterrupted run.

        python -m benchmarks.hundred_kills --kills 100 --seed 0

    Each run is restarted until it ends and is killed up to `--most` times. Its weights, optimizer state, History,
    logs of every step, CSV lines and checkpoint names are compared with those of an uninterrupted run. The scenarios
    are those of `tests/kill_driver.py`, each under two strategies, and every input of `tests/resumed_inputs.py` that
    can be resumed exactly.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=100, help="number of kills that must happen during a run"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill times")
    parser.add_argument("--most", type=int, default=5, help="most kills of one run")
    parser.add_argument("--only", default="", help="only scenarios and inputs whose names contain this")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    combinations = [*kill_driver.COMBINATIONS, *((name, "none") for name in kill_driver.EXACT_INPUTS)]
    if arguments.only:
        combinations = [each for each in combinations if arguments.only in each[0]]
    rng.shuffle(combinations)
    struck: collections.Counter[str] = collections.Counter()
    runs = different = 0
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, Forked() as forked:
        driver = kill_driver.Driver(forked, Path(folder))
        alone = {}
        while struck.total() < arguments.kills:
            scenario, strategy = combinations[runs % len(combinations)]
            if (scenario, strategy) not in alone:
                directory = Path(folder, "alone", scenario, strategy)
                order = {
                    "scenario": scenario,
                    "strategy": strategy,
                    "directory": str(directory),
                    "backup": False,
                }
                if driver.start(order) != 0:
                    raise RuntimeError(f"The uninterrupted run failed: {order}.")
                alone[scenario, strategy] = kill_driver.read_result(directory / "result")
            directory = Path(folder, str(runs))
            order = {"scenario": scenario, "strategy": strategy, "directory": str(directory), "backup": True}
            left = arguments.kills - struck.total()
            kills = [kill_driver.Kill.draw(rng) for _ in range(min(left, rng.randint(1, arguments.most)))]
            count = driver.run_killed(order, kills)
            struck.update(kill.kind for kill in kills[:count])
            found = kill_driver.differences(
                kill_driver.read_result(directory / "result"), alone[scenario, strategy]
            )
            runs += 1
            different += bool(found)
            print(
                f"{struck.total():4} kills  {scenario:30} {strategy:10} {count} here  {found or 'same bits'}",
                flush=True,
            )
    moments = ", ".join(f"{count} during a {kind}" for kind, count in sorted(struck.items()))
    print(
        f"seed {arguments.seed}: {struck.total()} kills ({moments}) of {runs} runs; {different} differ from the "
        f"uninterrupted run; {time.monotonic() - begin:.0f} s"
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
