"""What the progress bar and the report cost: `fit` with each of them, beside `fit(verbose=0)`.

Trains the small MLP of the speed comparison in rounds. In each round every way has its turn, in an order that changes from
round to round: without either twice, which shows how large a difference is that means nothing; with a bar that is written
into a pipe; with a bar that is redrawn on a pseudo-terminal; with a report. Another process reads what is printed. The table
has the median and the quartiles of each way's time as a ratio to that without either in the same round.
`python -m benchmarks.progress_cost --rounds 40`, on a quiet machine.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pty
import subprocess
import tempfile
import time
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras

import unisono
from benchmarks.contestants import keras_models
from benchmarks.contestants.task import BATCH, Task, arrays
from benchmarks.tables import publish, spread

WAYS = ("nothing", "nothing again", "bar in a pipe", "bar on a terminal", "report")


@contextlib.contextmanager
def output(way: str) -> Iterator[Any]:
    """The stream that a way prints to; `cat` reads it in a process of its own. None: nothing is printed."""
    if "bar" not in way:
        yield None
        return
    read, write = pty.openpty() if way == "bar on a terminal" else os.pipe()
    reader = subprocess.Popen(["cat"], stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.close(read)
    try:
        with os.fdopen(write, "w", encoding="utf-8") as stream:
            yield stream
    finally:
        reader.wait(10)


def make_model() -> Any:
    """The MLP of `python -m benchmarks`."""
    keras.utils.set_random_seed(0)
    model = keras_models.build(keras, Task("mlp"), unisono.Model)
    model.compile(**keras_models.compile_arguments(keras), jit_compile=False)  # one way in every round
    return model


def seconds(model: Any, way: str, steps: int, epochs: int) -> float:
    """The time of one `fit`."""
    x, y = arrays("mlp", steps)
    with output(way) as stream, tempfile.TemporaryDirectory() as folder:
        shows: list[Any] = [] if stream is None else [unisono.callbacks.ProgressBar(stream)]
        if way == "report":
            shows = [unisono.callbacks.TrainingReport(f"{folder}/report.html", gradient_norm=False)]
        began = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0 if stream is None else 1, callbacks=shows)
        return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="turns of each way")
    parser.add_argument("--steps", type=int, default=4000, help="of an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="of one turn")
    arguments = parser.parse_args()
    model = make_model()
    for way in WAYS:  # compiles
        seconds(model, way, arguments.steps, 1)
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for turn in range(arguments.rounds):
        first = turn % len(WAYS)
        for way in WAYS[first:] + WAYS[:first]:
            times[way].append(seconds(model, way, arguments.steps, arguments.epochs))
    base = times["nothing"]
    rows = []
    for way, taken in times.items():
        ratios = [a / b for a, b in zip(taken, base)]
        rows.append(
            [way, spread(taken, 1e6 / arguments.epochs / arguments.steps), spread(ratios, form="{:.3f}")]
        )
    head = f"{arguments.epochs} epochs of {arguments.steps:,} steps, {arguments.rounds} rounds"
    publish("progress_cost", [head, "us a step", "ratio"], rows)


if __name__ == "__main__":
    main()
