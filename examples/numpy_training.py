"""Training with NumPy code: preprocessing, a layer, the loss, a metric and a gradient transformer, with NumPy functions.

`tf.experimental.numpy` has NumPy's functions as TensorFlow operations: they run in graphs, on any device, have gradients
and can be compiled by XLA. Here a model learns to tell the 1,797 real handwritten digits of scikit-learn from each other,
on one device and on two replicas, with the same numbers. Run it with `python examples/numpy_training.py`.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import sklearn.datasets
import tensorflow as tf

import unisono

tnp = tf.experimental.numpy

BATCH = 50  # 1,437 samples: the last batch of an epoch has 37, and neither divides by two


def preprocess(image: Any, label: Any) -> tuple[Any, Any]:
    """Each image centred and scaled, in the input pipeline."""
    image = tnp.asarray(image, tnp.float32)
    image = (image - tnp.mean(image, axis=1, keepdims=True)) / (tnp.std(image, axis=1, keepdims=True) + 1e-6)
    return image, label


class Rings(keras.layers.Layer):
    """Distances to learned points, as radial basis functions: a layer whose `call` is NumPy code."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units

    def build(self, shape: Any) -> None:
        """Makes the points."""
        self.points = self.add_weight(
            shape=(self.units, shape[-1]), initializer="random_normal", name="points"
        )

    def call(self, inputs: Any) -> Any:
        """The distance of each sample to each point."""
        points = tf.convert_to_tensor(self.points)
        far = tnp.sum(tnp.square(inputs[:, None, :] - points[None, :, :]), axis=-1)
        return tnp.exp(-far / (2.0 * inputs.shape[-1]))


@unisono.rowwise
def cross_entropy(y_true: Any, y_pred: Any) -> Any:
    """The loss of one-hot labels and scores for each sample. `rowwise` declares that samples are independent."""
    scores = y_pred - tnp.max(y_pred, axis=-1, keepdims=True)
    log_total = tnp.log(tnp.sum(tnp.exp(scores), axis=-1))
    wanted = tf.one_hot(tf.reshape(tf.cast(y_true, tf.int32), [-1]), 10)
    return log_total - tnp.sum(scores * wanted, axis=-1)


@unisono.rowwise
def in_top_two(y_true: Any, y_pred: Any) -> Any:
    """A metric for each sample: whether the right digit is one of the two best."""
    best = tnp.argsort(-y_pred, axis=-1)[:, :2]
    right = tnp.any(
        tnp.equal(tf.cast(best, tf.int32), tf.reshape(tf.cast(y_true, tf.int32), [-1, 1])), axis=-1
    )
    return tf.cast(right, tf.float32)


def shrink_large(gradients: Any) -> Any:
    """A gradient transformer: tames each gradient's entries, after they were summed over the replicas."""
    return [(tnp.sign(g) * tnp.log1p(tnp.abs(g)), v) for g, v in gradients]


def train(strategy: tf.distribute.Strategy, x: Any, y: Any) -> dict[str, list[float]]:
    """Trains one model; the seed, and so the initial weights, is always the same."""
    keras.utils.set_random_seed(7)
    with strategy.scope():
        model = unisono.Sequential([keras.Input((64,)), Rings(64), keras.layers.Dense(10)])
        model.compile(
            unisono.optimizers.Adam(1e-2, gradient_transformers=[shrink_large]),
            loss=cross_entropy,
            metrics=["accuracy", in_top_two],
        )
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(BATCH).map(preprocess)
    history = model.fit(data, epochs=15, verbose=2)
    return history.history


def main() -> None:
    """Trains on one device and on two replicas, and compares."""
    unisono.distribute.simulate_devices(2)
    digits = sklearn.datasets.load_digits()
    x, y = digits.data[:1437].astype("float32"), digits.target[:1437]
    one = train(tf.distribute.get_strategy(), x, y)
    two = train(tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), x, y)
    worst = max(abs(a - b) for a, b in zip(one["loss"], two["loss"], strict=True))
    print(f"accuracy {one['accuracy'][-1]:.4f} on one device, {two['accuracy'][-1]:.4f} on two replicas")
    print(f"the right digit is one of the two best: {one['in_top_two'][-1]:.4f}")
    print(f"largest difference of a loss: {worst:.1e}")
    if worst > 1e-3:
        raise SystemExit("the two runs are not the same")


if __name__ == "__main__":
    main()
