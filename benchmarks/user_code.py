"""What your own losses, metrics and steps cost on several replicas, against the step of `fit` with Keras' parts.

Each program trains the same classifier on two replicas of one machine. The rounds alternate the programs; the table has the
median and the quartiles of the ratio of each program's time a step to that of the plain one in the same round, and the
seconds that `fit` needs before its first step on new programs, where the search for how user code is joined is part of it.
Run it on a quiet machine: `python -m benchmarks.user_code [ROUNDS]`.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import unisono
from benchmarks.tables import publish

ops: Any = keras.ops

ROWS, BATCH, WIDTH, CLASSES = 16_000, 64, 256, 10


def _rows(y: Any, p: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def _across(y: Any, p: Any) -> Any:
    return ops.mean(_rows(y, p)) + 1e-3 * ops.mean((p[:, None] - p[None]) ** 2)


class OwnStep(unisono.Model):
    """A `train_step` as TensorFlow's guides write it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(_rows(y, self(x, training=True)))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


class OwnComputeLoss(unisono.Model):
    """A `compute_loss` that compares rows, so that rows are gathered."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        """The loss of all rows."""
        return _across(y, y_pred)


def _accuracy(y: Any, p: Any) -> Any:
    return ops.mean(ops.cast(ops.equal(ops.argmax(p, -1), ops.cast(y, "int64")), "float32"))


PLAIN = "the step of `fit`, Keras' loss"
PROGRAMS: dict[str, tuple[type, Any, list[Any]]] = {
    PLAIN: (unisono.Model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), []),
    "custom loss, marked `unisono.rowwise`": (unisono.Model, unisono.rowwise(_rows), []),
    "custom per-sample loss, not marked": (unisono.Model, _rows, []),
    "custom loss that compares samples": (unisono.Model, _across, []),
    "custom `compute_loss` that compares samples": (OwnComputeLoss, None, []),
    "custom metric, a function of all samples": (unisono.Model, PLAIN, [_accuracy]),
    "custom `train_step`": (OwnStep, None, []),
}


def program(name: str) -> Callable[[], Any]:
    """A function that trains for one epoch with the program of this name."""
    kind, loss, metrics = PROGRAMS[name]
    inputs = keras.Input((WIDTH,))
    hidden = keras.layers.Dense(WIDTH, "relu")(keras.layers.Dense(WIDTH, "relu")(inputs))
    model = kind(inputs, keras.layers.Dense(CLASSES)(hidden))
    loss = PROGRAMS[PLAIN][1] if loss is PLAIN else loss
    model.compile(unisono.optimizers.SGD(0.01), loss, metrics=metrics, jit_compile=False)
    random = np.random.default_rng(0)
    x = random.normal(size=(ROWS, WIDTH)).astype("float32")
    y = random.integers(0, CLASSES, size=ROWS)
    return lambda steps=ROWS // BATCH: model.fit(x[: steps * BATCH], y[: steps * BATCH], BATCH, verbose=0)


def main(rounds: int = 9) -> None:
    """Prints a table."""
    unisono.distribute.simulate_devices(2)
    starts, fits = {}, {}
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        for name in (PLAIN, *PROGRAMS):  # the first one pays for what is imported late
            begin = time.perf_counter()
            fits[name] = program(name)
            fits[name](1)
            starts[name] = time.perf_counter() - begin
        for fit in fits.values():
            fit()
        ratios: dict[str, list[float]] = {name: [] for name in PROGRAMS}
        for turn in range(rounds):
            seconds = {}
            order = list(PROGRAMS)
            for name in order[turn % len(order) :] + order[: turn % len(order)]:
                begin = time.perf_counter()
                fits[name]()
                seconds[name] = time.perf_counter() - begin
            for name in PROGRAMS:
                ratios[name].append(seconds[name] / seconds[PLAIN])
    rows = []
    for name, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4)
        rows.append([name, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{starts[name]:.1f} s"])
    publish("user_code", ["program", "time a step", "quartiles", "until the first step has ended"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
