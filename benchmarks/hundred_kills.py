"""Kills training runs at random moments, resumes them, and compares the results bit-for-bit."""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

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
    combinations = [each for each in find_combinations() if arguments.only in " ".join(each)]
    rng.shuffle(combinations)
    covered: collections.Counter[str] = collections.Counter()
    kills_done = runs = different = 0
    begin = time.monotonic()
    with contextlib.ExitStack() as stack:
        runner = Runner(stack)
        while kills_done < arguments.kills:
            scenario, strategy = combinations[runs % len(combinations)]
            most = min(arguments.kills - kills_done, rng.randint(1, arguments.most))
            kills, found = runner.run(scenario, strategy, rng, most)
            for kill in kills:
                covered.update(kill.describe(strategy))
            kills_done, runs, different = kills_done + len(kills), runs + 1, different + bool(found)
            words = f"{scenario:30} {strategy:16} {len(kills)} here  {found or 'same bits'}"
            print(f"{kills_done:4} kills  {words}", flush=True)
    print(
        f"seed {arguments.seed}: {kills_done} kills of {runs} runs; {different} differ from the uninterrupted run; "
        f"{time.monotonic() - begin:.0f} s\n"
        + ", ".join(f"{n} {what}" for what, n in sorted(covered.items()))
    )
    return 1 if different else 0


def find_combinations() -> list[tuple[str, str]]:
    """Returns (scenario, strategy) of all runs that this machine allows."""
    inputs = [(name, "none") for name in kill_driver.EXACT_INPUTS]
    hosts = host_kills.HOSTS if os.geteuid() == 0 and shutil.which("ip") else ()
    return [*kill_driver.COMBINATIONS, *kill_driver.STORED, *kill_driver.LAUNCHED, *inputs, *hosts]


class Runner:
    """Runs scenarios; the uninterrupted run of each comes before its first killed one."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self._stack, forked = stack, stack.enter_context(Forked())
        self._driver = kill_driver.Driver(forked, self._folder)
        self._hosts = host_kills.Hosts(forked, self._folder)
        self._alone: dict[tuple[str, str], Any] = {}
        self._runs = itertools.count()

    def run(self, scenario: str, strategy: str, rng: random.Random, most: int) -> tuple[list[Any], list[str]]:
        """Returns the kills that hit a run, of `most`, and the names of its results that differ."""
        several = (scenario, strategy) in kill_driver.LAUNCHED
        on_hosts = (scenario, strategy) in host_kills.HOSTS
        start = self._driver.launch_killed if several else self._driver.run_killed
        if on_hosts:
            start = self._hosts.run_killed

        def result(kills: list[Any], backup: bool) -> tuple[int, Any]:
            directory = self._folder / str(next(self._runs))
            order = {
                "scenario": scenario,
                "strategy": strategy,
                "directory": str(directory),
                "backup": backup,
            }
            return start(order, kills), kill_driver.read_result(directory / "result")

        if on_hosts and not self._hosts.names:
            self._stack.enter_context(self._hosts)
        if (scenario, strategy) not in self._alone:
            self._alone[scenario, strategy] = result([], backup=False)[1]
        draw = host_kills.draw if on_hosts else functools.partial(kill_driver.Kill.draw_any, several=several)
        kills = [draw(rng) for _ in range(most)]
        count, found = result(kills, backup=True)
        tolerance = 1e-12 * (strategy == "elastic")
        return kills[:count], kill_driver.differences(found, self._alone[scenario, strategy], tolerance)


if __name__ == "__main__":
    sys.exit(main())
