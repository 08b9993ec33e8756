"""Measures the efficiency of two worker processes, each pinned to a core."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys

from unisono.distribute.launcher.tasks import RequestedCluster, plan
from unisono.distribute.workers.addresses import free_ports

from .tables import publish, spread

WIDTHS = {"6": "512-1024-1024-10", "25": "1024-2048-2048-10"}
LABELS = {
    "ours": "`unisono.Model.fit`",
    "ours_bfloat16": '`fit`, `HalfPrecisionAggregation("bfloat16")`',
    "tensorflow": "a hand-written loop on TensorFlow's collectives",
    "torch": "PyTorch's DistributedDataParallel, gloo",
}
LIMITS = {
    "bare_1": "TensorFlow, one all-reduce",
    "bare_4096": "TensorFlow, one all-reduce in its own pieces of 4,096 bytes",
    "bare_packs": "TensorFlow, in six packs",
    "bare_gather": "TensorFlow, whole tensors exchanged and added",
    "bare_scatter": "TensorFlow, all-to-all of halves, then a gather",
    "bare_bfloat16": "TensorFlow, one all-reduce in bfloat16",
    "bare_torch": "PyTorch, gloo, one all-reduce",
}

HEAD = ["trainer", "alone, ms", "together, ms", "difference, ms", "efficiency"]
LIMIT_HEAD = ["sums of as many numbers and nothing else", "ms", "ratio"]
Times = dict[tuple[str, int], list[float]]
"""(trainer, number of workers) -> seconds of a step in each round."""


def main() -> int:
    """Runs the rounds and prints the table.

        python -m benchmarks.workers_efficiency [--mbyte 6|25] [--what trainers|limits] [--rounds 2] [--steps 40]

    Each trainer takes the same step (an MLP, 512 samples for each worker, SGD) alone on one core, and on two workers
    that all-reduce their gradients, 6 or 25 MB, over loopback. Efficiency is the time alone divided by the time
    together: 100 % if collectives cost nothing. Trainers take turns in every round, and the table has medians and
    quartiles. `ours` is `unisono.Model.fit`; `tensorflow` is a hand-written loop of `strategy.run` and `all_reduce`
    in one `tf.function`; `torch` is PyTorch's DistributedDataParallel with gloo, if PyTorch is installed. Limits are
    loops that all-reduce as many bytes and compute nothing: the lowest cost of the transport. `worker_loops.py` has
    the programs of the workers.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mbyte", choices=WIDTHS, default="6", help="approximate size of the gradients")
    parser.add_argument(
        "--what",
        choices=("trainers", "limits"),
        default="trainers",
        help="compare trainers, or measure the limits",
    )
    parser.add_argument("--rounds", type=int, default=2, help="measured rounds")
    parser.add_argument("--steps", type=int, default=40, help="steps of a measured run")
    parser.add_argument("--only", help="only these trainers or limits, such as ours,torch")
    options = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("workers_efficiency: needs two CPU cores", file=sys.stderr)
        return 1
    limits, here = options.what == "limits", importlib.util.find_spec("torch") is not None
    chosen = options.only.split(",") if options.only else LIMITS if limits else LABELS
    chosen = [name for name in chosen if here or "torch" not in name]
    times: Times = {}
    for _ in range(options.rounds):
        for name in chosen:
            for workers in (2,) if limits else (1, 2):
                script = ["worker_loops.py", name, "--widths", WIDTHS[options.mbyte]]
                seconds = measure([*script, "--steps", str(options.steps)], workers, cores)
                times.setdefault((name, workers), []).append(seconds)
    small, rows = options.mbyte == "6", (lines_of_limits if limits else lines_of_trainers)(chosen, times)
    if limits and small:
        publish("all_reduce_limit", LIMIT_HEAD, rows)
    elif limits:
        publish("all_reduce_limit_25", LIMIT_HEAD, rows)
    elif small:
        publish("workers_efficiency", HEAD, rows)
    else:
        publish("workers_efficiency_25", HEAD, rows)
    return 0


def lines_of_trainers(chosen: list[str], times: Times) -> list[list[str]]:
    """A line for each trainer, in the order of `HEAD`."""
    rows = []
    for trainer in chosen:
        alone, together = times[trainer, 1], times[trainer, 2]
        cost = [b - a for a, b in zip(alone, together)]
        cells = [spread(each, 1e3, "{:.1f}") for each in (alone, together, cost)]
        efficiency = spread([a / b for a, b in zip(alone, together)], 100, "{:.0f}")
        rows.append([LABELS[trainer], *cells, f"{efficiency} %"])
    return rows


def lines_of_limits(chosen: list[str], times: Times) -> list[list[str]]:
    """A line for each loop, in the order of `LIMIT_HEAD`; ratios to the first."""
    rows = []
    for limit in chosen:
        ratios = [a / b for a, b in zip(times[limit, 2], times[chosen[0], 2])]
        milliseconds = spread(times[limit, 2], 1e3, "{:.1f}")
        rows.append([LIMITS[limit], milliseconds, f"{statistics.median(ratios):.2f}"])
    return rows


def measure(script: list[str], workers: int, cores: list[int]) -> float:
    """Seconds per step of the slowest worker."""
    script = [str(pathlib.Path(__file__).with_name(script[0])), *script[1:]]
    port = str(free_ports(1)[0])
    processes = []
    for index, task in enumerate(plan(RequestedCluster(workers=workers), script)):
        env = {
            **os.environ,
            **task.env,
            "CORE": str(cores[index]),
            "RANK": str(index),
            "WORLD_SIZE": str(workers),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
            "CUDA_VISIBLE_DEVICES": "",
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(subprocess.Popen(task.command, env=env, stdout=subprocess.PIPE, text=True))
    try:
        answers = [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return max(json.loads(answer.strip().splitlines()[-1])["seconds"] for answer in answers)


if __name__ == "__main__":
    sys.exit(main())
