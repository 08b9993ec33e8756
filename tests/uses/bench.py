"""The fixture for the tables of uses: one small model, compiled once, and its data."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import unisono

X, Y = np.ones((6, 3), "float32"), np.ones((6, 2), "float32")
COLUMN = np.ones((6, 1), "float32")
NAN = float("nan")
V1 = tf.compat.v1.train.GradientDescentOptimizer(0.1)

Use = tuple[Callable[["Bench"], Any], tuple[str, ...]]


class Bench:
    """One model of `keras` or `unisono`, and folders for the files of callbacks."""

    def __init__(self, namespace: Any, folder: pathlib.Path, **options: Any) -> None:
        self.namespace, self.folder = namespace, folder
        self.model = self.new(**options)
        self.file = folder / "file"
        self.file.write_text("no folder")

    def new(self, **arguments: Any) -> Any:
        """A new compiled model."""
        layers = [keras.Input((3,), name="in"), keras.layers.Dense(2, name="out")]
        model = self.namespace.Sequential(layers)
        model.compile(**{"optimizer": "sgd", "loss": "mse", "run_eagerly": True, **arguments})
        return model

    def two_outputs(self, as_dict: bool = False, **arguments: Any) -> Any:
        """A functional model with the outputs "a" and "b"."""
        inputs = keras.Input((3,))
        outputs: Any = [keras.layers.Dense(1, name=name)(inputs) for name in "ab"]
        model = self.namespace.Model(inputs, dict(zip("ab", outputs)) if as_dict else outputs)
        model.compile(**{"optimizer": "sgd", "loss": "mse", "run_eagerly": True, **arguments})
        return model

    def fit(self, **arguments: Any) -> Any:
        """`fit` of the one model."""
        return self.model.fit(**{"x": X, "y": Y, "verbose": 0, **arguments})

    def compiled(self, **arguments: Any) -> Any:
        """`compile` of a new model, then `fit`: errors that `compile` misses must be found before the first step."""
        model = self.new(**arguments)
        return model.fit(X, Y, verbose=0)

    def called_back(self, callback: Any, **arguments: Any) -> Any:
        """`fit` with one callback."""
        return self.fit(callbacks=[callback], **arguments)


def rows(*arrays: Any) -> tf.data.Dataset:
    """A dataset of single samples."""
    return tf.data.Dataset.from_tensor_slices(arrays if len(arrays) > 1 else arrays[0])


def with_loss(bench: Bench, loss: Any, y: Any, **arguments: Any) -> Any:
    """`fit` of a new model with this loss and these targets."""
    return bench.new(loss=loss, **arguments).fit(X, y, verbose=0)


__all__ = [
    "COLUMN",
    "NAN",
    "V1",
    "Bench",
    "Use",
    "X",
    "Y",
    "keras",
    "np",
    "rows",
    "tf",
    "unisono",
    "with_loss",
]
