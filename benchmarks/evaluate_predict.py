"""The time of `evaluate` and `predict` relative to Keras 3, on the models of the speed comparison.

From arrays and from a pipeline, in batches of 32 rows; ours and Keras' take turns in one process. The table has the medians
of the ratios of the rounds, after `evaluate` of ours has found which of the graph and XLA is faster. The last row is what
only reading the pipeline takes, relative to Keras' `evaluate`: no loop over it can be faster.
`python -m benchmarks.evaluate_predict [ROUNDS]`.
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
MOST_PASSES = 100


def ratio(name: str, method: str, kind: str, rounds: int, only_read: bool = False) -> float:
    """The median over the rounds of our time by Keras', or of the time to read the pipeline by Keras'."""
    x, y = arrays(name, STEPS[name])
    rows: Any = (x, y) if method == "evaluate" else x

    def given() -> dict[str, Any]:
        if kind == "dataset":
            return {"x": tf.data.Dataset.from_tensor_slices(rows).batch(BATCH).prefetch(2)}
        return {"x": x, "batch_size": BATCH, **({"y": y} if method == "evaluate" else {})}

    def run_of(model: Any) -> Callable[[], Any]:
        return lambda: getattr(model, method)(verbose=0, **given())

    model = model_of(name, unisono.Model)
    ours = (lambda: int(last_row(given()["x"]))) if only_read else run_of(model)
    both = [ours, run_of(model_of(name, keras.Model))]
    for turn in range(MOST_PASSES):
        both[0](), both[1]()
        if turn and (only_read or method != "evaluate" or has_chosen(model)):
            break
    found = []
    for turn in range(rounds):
        pair = [seconds(run) for run in (both if turn % 2 else both[::-1])]
        mine, theirs = pair if turn % 2 else pair[::-1]
        found.append(mine / theirs)
    return statistics.median(found)


def model_of(name: str, model_class: Any) -> Any:
    """The compiled model of that name."""
    model: Any = keras_models.build(keras, Task(name), model_class)
    model.compile(**keras_models.compile_arguments(keras))
    return model


def has_chosen(model: Any) -> bool:
    """Whether `evaluate` has found which of the graph and XLA is faster."""
    return all(measured.way is not None for measured in model.test_function.measured.values())


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
