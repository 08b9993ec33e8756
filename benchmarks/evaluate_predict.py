"""Measures the time of `evaluate` and `predict` relative to Keras 3: `python -m benchmarks.evaluate_predict [ROUNDS]`."""

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
    """The median ratio of Unisono's time, or of the time to read the pipeline, to Keras' time."""
    x, y = arrays(name, STEPS[name])
    data: Any = (x, y) if method == "evaluate" else x

    def given() -> dict[str, Any]:
        if kind == "dataset":
            return {"x": tf.data.Dataset.from_tensor_slices(data).batch(BATCH).prefetch(2)}
        return {"x": x, "batch_size": BATCH, **({"y": y} if method == "evaluate" else {})}

    def run_of(model: Any) -> Callable[[], Any]:
        return lambda: getattr(model, method)(verbose=0, **given())

    model = model_of(name, unisono.Model)
    ours = (lambda: int(last_label(given()["x"]))) if only_read else run_of(model)
    both = [ours, run_of(model_of(name, keras.Model))]
    for _ in range(2):
        both[0](), both[1]()
    found = []
    for turn in range(rounds):
        pair = [seconds(run) for run in (both if turn % 2 else both[::-1])]
        mine, theirs = pair if turn % 2 else pair[::-1]
        found.append(mine / theirs)
    return statistics.median(found)


def model_of(name: str, model_class: Any) -> Any:
    """The compiled model `name`."""
    model: Any = keras_models.build(keras, Task(name), model_class)
    model.compile(**keras_models.compile_arguments(keras))
    return model


@tf.function(autograph=False, reduce_retracing=True)
def last_label(dataset: Any) -> Any:
    """Reads all batches and returns the first label of the last one."""
    return dataset.reduce(tf.constant(0, tf.int64), lambda _, batch: batch[1][0])


def seconds(run: Callable[[], Any]) -> float:
    """Times a call."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def main(rounds: int = 7) -> None:
    """Prints the median ratios over the rounds, on the models of the speed comparison.

    Inputs are arrays and a pipeline, in batches of 32 samples. Unisono and Keras take turns in one process, after
    `evaluate` has chosen between graph and XLA. The last line of the table is the time to read the pipeline alone,
    relative to Keras' `evaluate`: no loop over the pipeline can be faster.
    """
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
