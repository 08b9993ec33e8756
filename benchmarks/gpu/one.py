"""Measures one way of training one model, in each precision: a line of JSON for each. Run by `benchmarks.gpu`."""

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
    """Reads the arguments; prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("way")
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
        answer = _measure(o.way, Task(o.model, precision, o.tiny))
        answer |= {"way": o.way, "model": o.model, "precision": precision}
        answer["took"] = time.perf_counter() - began
        print(json.dumps(answer), flush=True)


def _give_up() -> None:
    print("its share of the ten minutes is over", file=sys.stderr, flush=True)
    os._exit(3)


def _measure(way: str, task: Task) -> dict[str, Any]:
    try:
        with Watch() as watch:
            seconds, peak = _run(way, task)
    except Exception as error:  # the other cells of the table can still be filled
        return {"failed": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]}
    return {"ms": 1e3 * min(seconds) / task.steps, "peak": peak, "busy": watch.percent}


def _run(way: str, task: Task) -> tuple[list[float], int | None]:
    if way == "torch":
        from . import torch_ways

        return torch_ways.loop(task), torch_ways.peak_bytes()
    if way == "jax":
        from . import jax_ways

        return jax_ways.loop(task), jax_ways.peak_bytes()
    from . import tensorflow_ways

    ways = {
        "ours": lambda: tensorflow_ways.fit(task, ours=True),
        "keras": lambda: tensorflow_ways.fit(task, ours=False),
        "loop": lambda: tensorflow_ways.loop(task),
    }
    return ways[way](), tensorflow_ways.peak_bytes()


if __name__ == "__main__":
    main()
