"""Measures memory and time of a step with sharded state; worker processes stand for machines."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from .tables import publish

WIDTH, SMALL, WARM_UP = 1024, 64, 3
LEVELS = ("none", "optimizer", "weights")
# Makes the allocators of oneDNN and C return freed memory.
GIVES_BACK = {"TF_ENABLE_ONEDNN_OPTS": "0", "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "2"}
_HEAD = (
    "workers",
    "micro-batches of an update",
    "level",
    "bytes for a parameter",
    "formula",
    "with transient full-size tensors",
    "measured, relative to that",
    "time of a step",
)


def main() -> None:
    """Runs the rounds and prints the table; `--child` runs one worker of one case.

        python -m benchmarks.sharded_state [--megabytes 200] [--workers 1 2 4] [--rounds 1] [--accumulation 1 2]

    A stack of Dense layers with `--megabytes` of float32 weights trains with Adam on one sample for each worker, so
    that only weights, gradients and optimizer state take memory. Memory, in bytes per parameter, is the peak of the
    largest worker during steps, minus its memory before the model was created, minus the need of the same program
    with layers of 64 units. The formula is that of the guide: 4 for weights, 4 for gradients, 8 for optimizer state,
    with accumulation 4 for the accumulated gradient; a sharded part counts 1/N. Transient full-size tensors come on
    top: two gradients, and at the level "weights" also two weights, each of one layer.

    Step times come from a separate run. The levels take turns in every round, and the ratio to no sharding is the
    median of the rounds. With accumulation, two workers are measured.
    """
    options = _options()
    if options.child:
        print(json.dumps(_worker(options)), flush=True)
        return
    found: dict[tuple[int, int, str], list[dict[str, float]]] = {}
    for accumulation in options.accumulation:
        for workers in options.workers if accumulation == 1 else (2,):
            levels = LEVELS if workers > 1 else LEVELS[:1]
            for _ in range(options.rounds):
                for level in levels:
                    result = _measure(options, workers, accumulation, level)
                    found.setdefault((accumulation, workers, level), []).append(result)
                    print(accumulation, workers, level, result, file=sys.stderr, flush=True)
    rows = [_row(key, results, found, _layers(options)) for key, results in found.items()]
    publish("sharded_state", _HEAD, [_cells(row) for row in rows])
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1))


def _cells(row: dict[str, Any]) -> list[str]:
    plain = row["level"] == "none"
    return [
        str(row["workers"]),
        str(row["accumulation"]),
        "without" if plain else f'"{row["level"]}"',
        f"{row['bytes']:.1f}",
        f"{row['formula']:g}",
        f"{row['with_moments']:.1f}",
        f"{row['bytes'] / row['with_moments']:.2f}",
        "" if plain else f"{row['ratio']:.2f}",
    ]


def formula(level: str, workers: int, accumulation: int) -> float:
    """Persistent bytes per parameter, and those of its gradient."""
    parts = 1 if level == "none" else workers
    weights = 4 / (workers if level == "weights" else 1)
    gradients, state = 4 / parts, 8 / parts
    return weights + gradients + state + (4 / parts if accumulation > 1 else 0.0)


def transient(level: str, layers: int) -> float:
    """Bytes per parameter of transient full-size tensors, in a stack of equal layers."""
    return {"none": 0, "optimizer": 2, "weights": 4}[level] * 4 / layers


def _row(
    key: tuple[int, int, str], results: list[dict[str, float]], found: Any, layers: int
) -> dict[str, Any]:
    accumulation, workers, level = key
    plain = found[accumulation, workers, "none"]
    expected = formula(level, workers, accumulation)
    return {
        "accumulation": accumulation,
        "workers": workers,
        "level": level,
        "bytes": statistics.median(r["bytes"] for r in results),
        "formula": expected,
        "with_moments": expected + transient(level, layers),
        "ms": 1e3 * statistics.median(r["seconds"] for r in results),
        "ratio": statistics.median(r["seconds"] / p["seconds"] for r, p in zip(results, plain)),
    }


def _measure(options: Any, workers: int, accumulation: int, level: str) -> dict[str, float]:
    """The largest memory of the workers and, from a second run with the usual allocators, the longest time."""
    memory, little = (
        _run(options, workers, accumulation, level, GIVES_BACK, width)["bytes"] for width in (WIDTH, SMALL)
    )
    parameters = _layers(options) * (WIDTH**2 - SMALL**2)
    seconds = _run(options, workers, accumulation, level, {}, WIDTH)["seconds"]
    return {"bytes": (memory - little) / parameters, "seconds": seconds}


def _layers(options: Any) -> int:
    return max(2, options.megabytes * 2**20 // (4 * WIDTH * WIDTH))


def _run(
    options: Any, workers: int, accumulation: int, level: str, env: dict[str, str], width: int
) -> dict[str, float]:
    from unisono.distribute.launcher.tasks import RequestedCluster, plan

    script = [sys.executable, "-m", "benchmarks.sharded_state", "--child", level]
    script += ["--megabytes", str(options.megabytes), "--steps", str(options.steps)]
    script += ["--accumulation", str(accumulation), "--width", str(width)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **env}
    tasks = plan(RequestedCluster(workers=workers), [])
    processes = [
        subprocess.Popen(script, env={**quiet, **task.env}, stdout=subprocess.PIPE, text=True)
        for task in tasks
    ]
    results = [json.loads(process.communicate(timeout=900)[0].splitlines()[-1]) for process in processes]
    return {name: max(result[name] for result in results) for name in ("bytes", "seconds")}


def _worker(options: Any) -> dict[str, float]:
    import keras
    import numpy as np
    import tensorflow as tf

    import unisono

    strategy: Any = tf.distribute.MultiWorkerMirroredStrategy()
    if options.child != "none":
        strategy = unisono.distribute.sharded(strategy, options.child)
    accumulation = options.accumulation[0]
    layers, width = _layers(options), options.width
    workers = strategy.num_replicas_in_sync
    samples = workers * accumulation * options.steps
    x = np.random.default_rng(0).normal(size=(samples, width)).astype("float32")

    def made(count: int) -> Any:
        with strategy.scope():
            stack = [keras.layers.Dense(width, use_bias=False) for _ in range(count)]
            model = unisono.Sequential([keras.Input((width,)), *stack])
            adam = unisono.optimizers.Adam(
                1e-5, gradient_accumulation_steps=accumulation if accumulation > 1 else None
            )
            model.compile(adam, "mse", jit_compile=False, steps_per_execution=1)
        return model

    def fit(model: Any, steps: int) -> None:
        count = workers * accumulation * steps
        model.fit(x[:count], x[:count], batch_size=workers, shuffle=False, verbose=0)

    fit(made(2), 1)  # allocates what TensorFlow keeps
    before = memory("VmRSS")
    model = made(layers)
    fit(model, WARM_UP)
    forget_peak()
    began = time.monotonic()
    fit(model, options.steps)
    seconds = (time.monotonic() - began) / options.steps
    return {"bytes": memory("VmHWM") - before, "seconds": seconds}


def memory(name: str) -> int:
    """Bytes of this process: current (`VmRSS`) or peak (`VmHWM`)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {name}: this benchmark needs Linux.")


def forget_peak() -> None:
    """Resets the peak memory of this process."""
    Path("/proc/self/clear_refs").write_text("5")


def _options() -> Any:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--megabytes", type=int, default=200, help="megabytes of float32 weights")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers")
    parser.add_argument(
        "--accumulation", type=int, nargs="+", default=[1, 2], help="micro-batches per update"
    )
    parser.add_argument("--rounds", type=int, default=1, help="measured rounds")
    parser.add_argument("--steps", type=int, default=6, help="steps of a measured run")
    parser.add_argument("--width", type=int, default=WIDTH, help=argparse.SUPPRESS)
    parser.add_argument("--child", choices=LEVELS, help=argparse.SUPPRESS)
    parser.add_argument("--json", help="write the numbers to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
