"""Measures one trainer of one model in each precision and prints a line of JSON for each. `benchmarks.gpu` runs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from typing import Any

from .task import Task
from .watch import Watch


def main() -> None:
    """Reads the arguments, measures, and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trainer")
    parser.add_argument("model")
    parser.add_argument("precisions")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=600.0)
    o = parser.parse_args()
    timer = threading.Timer(o.seconds, _give_up)
    timer.daemon = True
    timer.start()
    for precision in o.precisions.split(","):
        began = time.perf_counter()
        answer = _measure(o.trainer, Task(o.model, precision, o.tiny))
        answer |= {"trainer": o.trainer, "model": o.model, "precision": precision}
        answer["took"] = time.perf_counter() - began
        print(json.dumps(answer), flush=True)


def _give_up() -> None:
    print("its share of the time is over", file=sys.stderr, flush=True)
    os._exit(3)


def _measure(trainer: str, task: Task) -> dict[str, Any]:
    try:
        with Watch() as watch:
            seconds, peak = _run(trainer, task)
    except Exception as error:  # continue with the other cells of the table
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}
    return {"ms": 1e3 * min(seconds) / task.steps, "peak": peak, "busy": watch.percent}


def _run(trainer: str, task: Task) -> tuple[list[float], int | None]:
    if trainer == "torch":
        from . import torch_loop

        return torch_loop.loop(task), torch_loop.peak_bytes()
    if trainer == "jax":
        from . import jax_loop

        return jax_loop.loop(task), jax_loop.peak_bytes()
    from . import tensorflow_trainers

    trainers = {
        "ours": lambda: tensorflow_trainers.fit(task, ours=True),
        "keras": lambda: tensorflow_trainers.fit(task, ours=False),
        "loop": lambda: tensorflow_trainers.loop(task),
    }
    return trainers[trainer](), tensorflow_trainers.peak_bytes()


if __name__ == "__main__":
    main()
