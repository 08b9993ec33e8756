"""Kills training runs at random moments, resumes them, and compares the results bit-for-bit."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

import host_kills
import kill_driver
from forked import Forked


def main() -> int:
    """Returns 1 if a killed run differs from the uninterrupted run.

        python -m benchmarks.hundred_kills --kills 100 --seed 0

    Each run is restarted until it ends and is killed up to `--most` times. Its weights, optimizer state, History,
    logs of every step, CSV lines and checkpoint names are compared with those of an uninterrupted run. The scenarios
    are those of `tests/helpers/kill_driver.py`: one process under several strategies, sharded state and weights, a mesh,
    a pipeline, a bucket, workers that `launch` restarts, with sharded state and stages of a pipeline, a parameter server
    with its coordinator (of which the steps are compared), and every input of `tests/helpers/resumed_inputs.py` that can
    be resumed exactly. As root, two hosts too, as network namespaces (`tests/helpers/host_kills.py`): workers and whole
    hosts of a launch on both, which is elastic or not. Weights of elastic runs may differ by 1e-12, because their sums
    have other terms.
    What is drawn: SIGKILL, SIGTERM, SIGINT or SIGUSR1; a step, a save, the end of an epoch, a validation, a restore or the
    first compilation; the process; a clock that is wrong by a day; a write that finds the disk full.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--kills", type=int, default=100, help="number of kills that must happen during a run"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the kill times")
    parser.add_argument("--most", type=int, default=5, help="most kills of one run")
    parser.add_argument("--only", default="", help="only scenarios, inputs and strategies that contain this")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    inputs = [(name, "none") for name in kill_driver.EXACT_INPUTS]
    combinations = [*kill_driver.COMBINATIONS, *kill_driver.STORED, *kill_driver.LAUNCHED, *inputs]
    if os.geteuid() == 0 and shutil.which("ip"):
        combinations += host_kills.HOSTS
    if arguments.only:
        combinations = [each for each in combinations if arguments.only in " ".join(each)]
    rng.shuffle(combinations)
    covered: collections.Counter[str] = collections.Counter()
    kills_done = runs = different = 0
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        folder, forked = stack.enter_context(tempfile.TemporaryDirectory()), stack.enter_context(Forked())
        driver = kill_driver.Driver(forked, Path(folder))
        if any(each in host_kills.HOSTS for each in combinations):
            hosts = stack.enter_context(host_kills.Hosts(forked, Path(folder)))
        alone = {}
        while kills_done < arguments.kills:
            scenario, strategy = combinations[runs % len(combinations)]
            several = (scenario, strategy) in kill_driver.LAUNCHED
            on_hosts = (scenario, strategy) in host_kills.HOSTS
            run = hosts.run_killed if on_hosts else driver.launch_killed if several else driver.run_killed
            order = {"scenario": scenario, "strategy": strategy}
            if (scenario, strategy) not in alone:
                directory = Path(folder, "alone", scenario, strategy)
                run({**order, "directory": str(directory), "backup": False}, [])
                alone[scenario, strategy] = kill_driver.read_result(directory / "result")
            directory = Path(folder, str(runs))
            most = min(arguments.kills - kills_done, rng.randint(1, arguments.most))
            kills = [
                host_kills.draw(rng) if on_hosts else kill_driver.Kill.draw_any(rng, several)
                for _ in range(most)
            ]
            count = run({**order, "directory": str(directory), "backup": True}, kills)
            for kill in kills[:count]:
                covered.update(kill.describe(strategy))
            found = kill_driver.differences(
                kill_driver.read_result(directory / "result"),
                alone[scenario, strategy],
                tolerance=1e-12 * (strategy == "elastic"),
            )
            kills_done, runs, different = kills_done + count, runs + 1, different + bool(found)
            print(
                f"{kills_done:4} kills  {scenario:30} {strategy:16} {count} here  {found or 'same bits'}",
                flush=True,
            )
    print(
        f"seed {arguments.seed}: {kills_done} kills of {runs} runs; {different} differ from the uninterrupted run; "
        f"{time.monotonic() - begin:.0f} s\n"
        + ", ".join(f"{n} {what}" for what, n in sorted(covered.items()))
    )
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
