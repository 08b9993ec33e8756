"""Measures the cost of calls of `fit` and of epochs, relative to a hand-written loop under XLA."""

from __future__ import annotations

import os
import statistics
import sys
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import tensorflow as tf

import unisono
from benchmarks.contestants import keras_models, tensorflow_loops
from benchmarks.contestants.task import BATCH, Task, arrays
from benchmarks.tables import publish, spread

SETTINGS = ((2, 600), (2, 2000), (2, 6000), (32, 600))
"""(hidden layers, steps of an epoch)."""


class Clock(keras.callbacks.Callback):
    """Records the seconds of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Reads the clock."""
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Reads the clock."""
        self.seconds.append(time.perf_counter() - self.began)


def seconds(fit: Any, hand_written: Any, steps: int) -> tuple[float, float, float]:
    """Seconds of an epoch of a long fit, of a fit of one epoch, and of an epoch of the hand-written loop."""
    clock, times = Clock(), max(2, 4000 // steps)
    fit(epochs=1 + times, callbacks=[clock])
    one = []
    for _ in range(times):
        began = time.perf_counter()
        fit(epochs=1)
        one.append(time.perf_counter() - began)
    loop = hand_written(1 + times, steps)
    return statistics.median(clock.seconds[1:]), statistics.median(one), statistics.median(loop[1:])


def main(rounds: int = 9) -> None:
    """Prints the medians and quartiles of the ratios: `python -m benchmarks.short_fits [ROUNDS]`.

    The models are the MLP of the speed comparison and one with 32 hidden layers, trained from arrays. In each round,
    an epoch of a long fit, a fit of one epoch, and an epoch of the hand-written loop take turns in one process. The
    loop computes no metric.
    """
    rows = []
    for layers, steps in SETTINGS:
        task = Task("mlp", layers=layers)
        x, y = arrays("mlp", steps)
        model: Any = keras_models.build(keras, task, unisono.Model)
        model.compile(**keras_models.compile_arguments(keras))
        hand_written = tensorflow_loops.make("tf_xla", task)

        def fit(model: Any = model, x: Any = x, y: Any = y, **options: Any) -> None:
            model.fit(x, y, batch_size=BATCH, verbose=0, **options)

        fit(epochs=60_000 // steps)  # until it has chosen between graph and XLA
        hand_written(2, steps)
        found = [seconds(fit, hand_written, steps) for _ in range(rounds)]
        epochs, ones, loops = zip(*found)
        cells = [
            spread(loops, 1e6 / steps, "{:.0f}"),
            spread([a / b for a, b in zip(epochs, loops)]),
            spread([a / b for a, b in zip(ones, loops)]),
            spread([a / b for a, b in zip(ones, epochs)]),
        ]
        rows.append([f"{layers} hidden layers, {steps:,} steps ({model.train_function.backend})", *cells])
        print(" ".join(rows[-1]), flush=True)
    head = [
        "MLP, batch 32",
        "hand-written loop, us a step",
        "an epoch / loop",
        "a fit of one epoch / loop",
        "a fit of one epoch / an epoch",
    ]
    publish("short_fits", head, rows)


if __name__ == "__main__":
    tf.get_logger().setLevel("ERROR")
    main(*map(int, sys.argv[1:]))
