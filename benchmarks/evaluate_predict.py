"""The time of `evaluate` and `predict` relative to Keras 3, on the models of the speed comparison.

From arrays and from a pipeline, in batches of 32 rows; ours and Keras' take turns in one process. The table has the medians
of the ratios of the rounds. `python -m benchmarks.evaluate_predict [ROUNDS]`.
"""

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
from benchmarks.contestants import keras_models
from benchmarks.contestants.task import BATCH, MODELS, Task, arrays
from benchmarks.tables import publish

STEPS = {"mlp": 1000, "cnn": 200, "transformer": 60}


def ratio(name: str, method: str, kind: str, rounds: int) -> float:
    """The median over the rounds of our time by Keras'."""
    x, y = arrays(name, STEPS[name])
    models = []
    for model_class in (unisono.Model, keras.Model):
        model: Any = keras_models.build(keras, Task(name), model_class)
        model.compile(**keras_models.compile_arguments(keras))
        models.append(model)

    def seconds(model: Any) -> float:
        given: dict[str, Any] = {"x": x, "batch_size": BATCH}
        if method == "evaluate":
            given["y"] = y
        if kind == "dataset":
            rows = (x, y) if method == "evaluate" else x
            given = {"x": tf.data.Dataset.from_tensor_slices(rows).batch(BATCH).prefetch(2)}
        began = time.perf_counter()
        getattr(model, method)(verbose=0, **given)
        return time.perf_counter() - began

    found = []
    for turn in range(rounds + 2):
        pair = [seconds(model) for model in (models if turn % 2 else models[::-1])]
        ours, theirs = pair if turn % 2 else pair[::-1]
        found.append(ours / theirs)
    return statistics.median(found[2:])  # the first two compile


def main(rounds: int = 7) -> None:
    """Prints a table."""
    rows = []
    for method in ("evaluate", "predict"):
        cells = [[ratio(name, method, kind, rounds) for kind in ("arrays", "dataset")] for name in MODELS]
        rows.append([f"`{method}`", *[" / ".join(f"{value:.2f}" for value in cell) for cell in cells]])
        print(" ".join(rows[-1]), flush=True)
    publish("evaluate_predict", ["", "MLP", "CNN", "transformer"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
