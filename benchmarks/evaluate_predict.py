"""The time of `evaluate` and `predict` relative to Keras 3, on the models of the speed comparison.

From arrays and from a pipeline, in batches of 32 rows; ours and Keras' take turns in one process. The table has the medians
of the ratios of the rounds. The last row is what only reading the pipeline takes, relative to Keras' `evaluate`: no loop
over it can be faster. `python -m benchmarks.evaluate_predict [ROUNDS]`.
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
import tensorflow as tf

import unisono
from benchmarks.contestants import keras_models
from benchmarks.contestants.task import BATCH, MODELS, Task, arrays
from benchmarks.tables import publish

STEPS = {"mlp": 1000, "cnn": 200, "transformer": 60}


def ratio(name: str, method: str, kind: str, rounds: int, only_read: bool = False) -> float:
    """The median over the rounds of our time by Keras', or of the time to read the pipeline by Keras'."""
    x, y = arrays(name, STEPS[name])
    rows: Any = (x, y) if method == "evaluate" else x

    def given() -> dict[str, Any]:
        if kind == "dataset":
            return {"x": tf.data.Dataset.from_tensor_slices(rows).batch(BATCH).prefetch(2)}
        return {"x": x, "batch_size": BATCH, **({"y": y} if method == "evaluate" else {})}

    def by_model(model_class: Any) -> Callable[[], Any]:
        model: Any = keras_models.build(keras, Task(name), model_class)
        model.compile(**keras_models.compile_arguments(keras))
        return lambda: getattr(model, method)(verbose=0, **given())

    ours = (lambda: int(last_row(given()["x"]))) if only_read else by_model(unisono.Model)
    both = [ours, by_model(keras.Model)]
    found = []
    for turn in range(rounds + 2):
        pair = [seconds(run) for run in (both if turn % 2 else both[::-1])]
        mine, theirs = pair if turn % 2 else pair[::-1]
        found.append(mine / theirs)
    return statistics.median(found[2:])  # the first two compile


@tf.function(autograph=False, reduce_retracing=True)
def last_row(dataset: Any) -> Any:
    """Reads all batches; the first label of the last."""
    return dataset.reduce(tf.constant(0, tf.int64), lambda _, batch: batch[1][0])


def seconds(run: Callable[[], Any]) -> float:
    """What a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main(rounds: int = 7) -> None:
    """Prints a table."""
    rows = []
    for method in ("evaluate", "predict"):
        cells = [[ratio(name, method, kind, rounds) for kind in ("arrays", "dataset")] for name in MODELS]
        rows.append([f"`{method}`", *[" / ".join(f"{value:.2f}" for value in cell) for cell in cells]])
        print(" ".join(rows[-1]), flush=True)
    read = [ratio(name, "evaluate", "dataset", rounds, only_read=True) for name in MODELS]
    rows.append(["reading the pipeline", *[f"/ {value:.2f}" for value in read]])
    publish("evaluate_predict", ["", "MLP", "CNN", "transformer"], rows)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
