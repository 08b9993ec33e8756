"""Measures the speed-up of two pipeline stages on two cores, against the ideal M K / (M + K - 1) and the simulator."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["CUDA_VISIBLE_DEVICES"] = ""


def main() -> None:
    """Prints a table.

        python -m benchmarks.pipeline_speed --micro-batches 1 2 4 8 16 32 --json speed.json

    Each stage has its own process, pinned to a core. The baseline runs the same step with one stage in one process on
    one core. Both take turns, and the best time of each counts. The remaining difference is the time of transfers.
    Run it on a quiet machine with at least as many cores as stages.
    """
    options = _options()
    if options.inner:
        _measure(options)
        return
    results = []
    for micro_batches in options.micro_batches:
        turns = [
            (_run(options, micro_batches, 1), _run(options, micro_batches, options.stages))
            for _ in range(options.rounds)
        ]
        one, several = (min(runs, key=lambda run: run["seconds"]) for runs in zip(*turns))
        k = options.stages
        ideal = micro_batches * k / (micro_batches + k - 1)
        speedup = one["seconds"] / several["seconds"]
        results.append(
            {
                "micro_batches": micro_batches,
                "one": one,
                "stages": several,
                "speedup": speedup,
                "ideal": ideal,
            }
        )
        print(
            f"M = {micro_batches:3}  one core {one['seconds'] * 1e3:8.1f} ms  {k} stages "
            f"{several['seconds'] * 1e3:8.1f} ms  speed-up {speedup:.2f} of {ideal:.2f} ({speedup / ideal:.0%})  "
            f"simulated {several['simulated']:.2f}",
            flush=True,
        )
    from benchmarks.tables import publish  # not where this file is run as a child

    rows = [
        [
            str(result["micro_batches"]),
            f"{1e3 * result['one']['seconds']:,.0f}",
            f"{1e3 * result['stages']['seconds']:,.0f}",
            f"{result['speedup']:.2f}",
            f"{result['ideal']:.2f}",
            f"{result['stages']['simulated']:.2f}",
            f"{100 * result['speedup'] / result['ideal']:.0f} %",
        ]
        for result in results
    ]
    head = [
        "micro-batches M",
        "one core, ms",
        "two stages, ms",
        "speed-up",
        "ideal",
        "simulated",
        "of the ideal",
    ]
    publish("pipeline_speed", head, rows)
    if options.json:
        Path(options.json).write_text(json.dumps(results, indent=1))


def _run(options: Any, micro_batches: int, stages: int) -> dict[str, Any]:
    """Starts the processes, one for each stage, each on a core of its own; returns what the first one measured."""
    from unisono.distribute.launcher.tasks import RequestedCluster, plan

    script = [__file__, "--inner", "--stages", str(stages), "--micro-batches", str(micro_batches)]
    for name in ("width", "layers", "rows", "steps", "repeats", "schedule"):
        script += [f"--{name}", str(getattr(options, name))]
    tasks = plan(RequestedCluster(workers=1, stages=stages), script)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < stages:
        raise SystemExit(
            f"--stages ({stages}) must not be more than the cores of this machine ({len(cores)})"
        )
    processes = []
    try:
        for core, task in zip(cores, reversed(tasks)):
            main_process = task is tasks[-1]
            processes.append(
                subprocess.Popen(
                    ["taskset", "-c", str(core), *task.command],
                    env={**os.environ, **task.env},
                    stdout=subprocess.PIPE if main_process else subprocess.DEVNULL,
                    text=True,
                )
            )
        output, _ = processes[0].communicate(timeout=900)
        if processes[0].returncode:
            raise SystemExit(f"the measured process ended with status {processes[0].returncode}")
        return json.loads(output.splitlines()[-1])
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def _measure(options: Any) -> None:
    """One step of a stack of equal layers, best of `repeats` means over `steps` steps; prints JSON."""
    import keras
    import numpy as np
    import tensorflow as tf

    import unisono
    from unisono.distribute.pipeline import Pipeline, connect

    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    stages, (micro_batches,) = options.stages, options.micro_batches
    devices = connect() if stages > 1 else ["CPU:0"]
    samples = options.samples * micro_batches
    with Pipeline(devices, micro_batches, schedule=options.schedule, cost="measured").scope():
        dense = [keras.layers.Dense(options.width, activation="relu") for _ in range(options.layers)]
        model = unisono.Sequential([keras.Input((options.width,)), *dense])
        model.compile("sgd", "mse", steps_per_execution=options.steps)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(samples, options.width)).astype("float32")
    data = tf.data.Dataset.from_tensors((x, x)).repeat(options.steps)
    model.fit(data, verbose=0)
    times = []
    for _ in range(options.repeats):
        start = time.perf_counter()
        model.fit(data, verbose=0)
        times.append((time.perf_counter() - start) / options.steps)
    simulated = model._runner.pipeline.plan(model).simulation().speedup
    print(json.dumps({"seconds": min(times), "all": times, "simulated": simulated}))


def _options() -> Any:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stages", type=int, default=2, help="numbers of stages")
    parser.add_argument(
        "--micro-batches", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32], help="micro-batches of a step"
    )
    parser.add_argument("--width", type=int, default=1024, help="units of a layer")
    parser.add_argument("--layers", type=int, default=8, help="number of layers")
    parser.add_argument("--samples", type=int, default=128, help="samples of a micro-batch")
    parser.add_argument("--steps", type=int, default=5, help="steps of a measured run")
    parser.add_argument("--repeats", type=int, default=5, help="repetitions; the best one counts")
    parser.add_argument("--rounds", type=int, default=2, help="rounds; the best one counts")
    parser.add_argument("--schedule", default="1f1b", help="schedule of the pipeline")
    parser.add_argument("--inner", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the numbers to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
