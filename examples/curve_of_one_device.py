"""The problem in one picture: plain Keras on four replicas leaves the curve of one device, and Unisono stays on it.

Trains a small network on the real digits of scikit-learn three times, from the same initial weights and in the same order:
plain Keras on one device, plain Keras on four replicas, and Unisono on four replicas. Gradients are clipped, and the last
batch of an epoch has fewer than 64 samples. Writes the curves as an SVG: `python examples/curve_of_one_device.py [FOLDER]`.
"""

from __future__ import annotations

import os
import pathlib
import sys
from types import ModuleType
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono

EPOCHS, BATCH, TEST_ROWS = 12, 64, 360
REPLICAS = ["CPU:0", "CPU:1", "CPU:2", "CPU:3"]
# Of the length of the weights: four replicas add float32 numbers in a different order.
LARGEST = 1e-4
ONE, KERAS, OURS = "Keras, one device", "Keras, four replicas", "Unisono, four replicas"


def train(package: ModuleType, strategy: tf.distribute.Strategy, train_data: Any, test_data: Any) -> Any:
    """The weights, and the losses on unseen digits after each epoch, of a model of Keras or Unisono."""
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = package.Sequential(
            [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        )
        model.compile(
            package.optimizers.SGD(0.3, momentum=0.9, global_clipnorm=0.3),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            jit_compile=False,
        )
    fit = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    history = model.fit(*train_data, validation_data=test_data, **fit)
    return model.get_weights(), history.history["val_loss"]


def distance(some: list[np.ndarray], others: list[np.ndarray]) -> float:
    """The length of the difference of all weights."""
    return float(np.sqrt(sum(np.sum(np.square(a - b)) for a, b in zip(some, others, strict=True))))


def draw(path: pathlib.Path, curves: dict[str, list[float]]) -> None:
    """Writes an SVG whose colours can be read on a light and on a dark page."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    grey = "#7a7a7a"
    plt.rcParams.update(
        {"svg.fonttype": "none", "svg.hashsalt": "unisono", "text.color": grey, "axes.labelcolor": grey}
    )
    plt.rcParams.update({"axes.edgecolor": grey, "xtick.color": grey, "ytick.color": grey, "font.size": 12})
    figure, axis = plt.subplots(figsize=(6.6, 3.3), layout="constrained")
    styles = {
        ONE: {"color": grey, "linewidth": 7, "alpha": 0.45},
        KERAS: {"color": "#d9602b", "linewidth": 2.5},
        OURS: {"color": "#1f9d7a", "linewidth": 2.5, "linestyle": (0, (4, 2))},
    }
    for name, curve in curves.items():
        axis.plot(range(1, len(curve) + 1), curve, label=name, **styles[name])
    axis.set_xlabel("epoch")
    axis.set_ylabel("loss on unseen digits")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)


def main(folder: str = "demo") -> None:
    """Trains three times, compares and draws."""
    out = pathlib.Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    unisono.distribute.simulate_devices(len(REPLICAS))
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = digits.data[order].astype("float32") / 16, digits.target[order].astype("int32")
    data = (x[:-TEST_ROWS], y[:-TEST_ROWS]), (x[-TEST_ROWS:], y[-TEST_ROWS:])

    weights, curves = {}, {}
    for name, package in ((ONE, keras), (KERAS, keras), (OURS, unisono)):
        strategy = tf.distribute.get_strategy() if name == ONE else tf.distribute.MirroredStrategy(REPLICAS)
        weights[name], curves[name] = train(package, strategy, *data)
    draw(out / "curve.svg", curves)

    moved = distance(weights[ONE], [np.zeros_like(each) for each in weights[ONE]])
    for name in (KERAS, OURS):
        away = distance(weights[name], weights[ONE]) / moved
        print(
            f"{name:24s} loss {curves[name][-1]:.4f}, weights {away:.1e} of their length away from one device's"
        )
    print(f"{ONE:24s} loss {curves[ONE][-1]:.4f}\ncurves: {out / 'curve.svg'}")
    if away > LARGEST:
        raise SystemExit(f"Unisono left the curve by {away:.1e}: more than {LARGEST:.0e}.")


if __name__ == "__main__":
    main(*sys.argv[1:])
