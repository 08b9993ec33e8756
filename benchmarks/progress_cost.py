"""Measures the cost of the progress bar and the report: `fit` with each of them, against `fit(verbose=0)`."""

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

MODES = ("nothing", "nothing again", "bar in a pipe", "bar on a terminal", "report")


@contextlib.contextmanager
def output(mode: str) -> Iterator[Any]:
    """The output stream of a mode, read by `cat` in another process; None: no output."""
    if "bar" not in mode:
        yield None
        return
    read, write = pty.openpty() if mode == "bar on a terminal" else os.pipe()
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
    model.compile(
        **keras_models.compile_arguments(keras), jit_compile=False
    )  # the same backend in every round
    return model


def seconds(model: Any, mode: str, steps: int, epochs: int) -> float:
    """The time of one `fit`."""
    x, y = arrays("mlp", steps)
    with output(mode) as stream, tempfile.TemporaryDirectory() as folder:
        shows: list[Any] = [] if stream is None else [unisono.callbacks.ProgressBar(stream)]
        if mode == "report":
            shows = [unisono.callbacks.TrainingReport(f"{folder}/report.html", gradient_norm=False)]
        began = time.perf_counter()
        model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0 if stream is None else 1, callbacks=shows)
        return time.perf_counter() - began


def main() -> None:
    """Prints a table. Run it on a quiet machine with `python -m benchmarks.progress_cost --rounds 40`.

    Each round trains the small MLP of the speed comparison in five modes, in a rotating order: twice without output,
    which shows the noise, with a progress bar written to a pipe, with a bar redrawn on a pseudo-terminal, and with a
    report. Another process reads the output. The table has the median and quartiles of each mode's ratio to the first
    mode in the same round.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=40, help="rounds; every mode runs once in each")
    parser.add_argument("--steps", type=int, default=4000, help="steps of an epoch")
    parser.add_argument("--epochs", type=int, default=4, help="epochs of one `fit`")
    arguments = parser.parse_args()
    model = make_model()
    for mode in MODES:  # compiles
        seconds(model, mode, arguments.steps, 1)
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for turn in range(arguments.rounds):
        first = turn % len(MODES)
        for mode in MODES[first:] + MODES[:first]:
            times[mode].append(seconds(model, mode, arguments.steps, arguments.epochs))
    base = times["nothing"]
    rows = []
    for mode, taken in times.items():
        ratios = [a / b for a, b in zip(taken, base)]
        rows.append(
            [mode, spread(taken, 1e6 / arguments.epochs / arguments.steps), spread(ratios, form="{:.3f}")]
        )
    head = f"{arguments.epochs} epochs of {arguments.steps:,} steps, {arguments.rounds} rounds"
    publish("progress_cost", [head, "us a step", "ratio"], rows)


if __name__ == "__main__":
    main()
