"""Measures custom losses, metrics and steps on several replicas, against `fit` with Keras' own parts."""

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

SAMPLES, BATCH, WIDTH, CLASSES = 16_000, 64, 256, 10


def _per_sample(y: Any, p: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, p, from_logits=True)


def _across(y: Any, p: Any) -> Any:
    return ops.mean(_per_sample(y, p)) + 1e-3 * ops.mean((p[:, None] - p[None]) ** 2)


class CustomStep(unisono.Model):
    """A `train_step` as TensorFlow's guides write it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        """One step."""
        x, y = data
        with tf.GradientTape() as tape:
            loss = ops.mean(_per_sample(y, self(x, training=True)))
        variables = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return {"loss": loss}


class CustomComputeLoss(unisono.Model):
    """A `compute_loss` that compares samples, so that samples are all-gathered."""

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        """The loss over the global batch."""
        return _across(y, y_pred)


def _accuracy(y: Any, p: Any) -> Any:
    return ops.mean(ops.cast(ops.equal(ops.argmax(p, -1), ops.cast(y, "int64")), "float32"))


PLAIN = "the step of `fit`, Keras' loss"
PROGRAMS: dict[str, tuple[type, Any, list[Any]]] = {
    PLAIN: (unisono.Model, keras.losses.SparseCategoricalCrossentropy(from_logits=True), []),
    "custom loss, marked `unisono.rowwise`": (unisono.Model, unisono.rowwise(_per_sample), []),
    "custom per-sample loss, not marked": (unisono.Model, _per_sample, []),
    "custom loss that compares samples": (unisono.Model, _across, []),
    "custom `compute_loss` that compares samples": (CustomComputeLoss, None, []),
    "custom metric, a function of all samples": (unisono.Model, PLAIN, [_accuracy]),
    "custom `train_step`": (CustomStep, None, []),
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
    x = random.normal(size=(SAMPLES, WIDTH)).astype("float32")
    y = random.integers(0, CLASSES, size=SAMPLES)
    return lambda steps=SAMPLES // BATCH: model.fit(x[: steps * BATCH], y[: steps * BATCH], BATCH, verbose=0)


def main(rounds: int = 9) -> None:
    """Prints a table. Run it on a quiet machine with `python -m benchmarks.user_code [ROUNDS]`.

    Each program trains the same classifier on two replicas of one machine. The rounds alternate the programs. The
    table has the median and quartiles of each program's step time relative to the plain program in the same round. It
    also has the seconds until the end of a new program's first step, which include the analysis of user code.
    """
    unisono.distribute.simulate_devices(2)
    starts, fits = {}, {}
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        for name in (PLAIN, *PROGRAMS):  # the first one pays for late imports
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
