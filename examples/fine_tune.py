"""Fine-tuning a model of `keras.applications` through `adopt`, on two replicas.

A small MobileNet learns the digits 0 to 4 first; then its body is frozen and a new head learns 5 to 9. With
a connection to the internet you would begin with `weights="imagenet"` instead.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono

BATCH = 51
ROWS = 17 * BATCH  # only full batches: each size of batch would be compiled by itself


def load_digits(classes: range) -> tuple[np.ndarray, np.ndarray]:
    """Digits as colour images of 32 x 32 from -1 to 1, and their labels counted from 0."""
    digits = sklearn.datasets.load_digits()
    chosen = np.isin(digits.target, classes)
    images = tf.image.resize(digits.images[chosen][..., None] / 8.0 - 1.0, (32, 32))
    images = np.repeat(images.numpy(), 3, axis=-1).astype("float32")
    return images[:ROWS], (digits.target[chosen] - classes.start)[:ROWS]


def compiled(model: keras.Model, learning_rate: float) -> keras.Model:
    model.compile(
        unisono.optimizers.Adam(learning_rate),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    keras.utils.set_random_seed(1)
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

    with strategy.scope():
        body = keras.applications.MobileNet(
            (32, 32, 3), alpha=0.25, include_top=False, weights=None, pooling="avg"
        )
        for layer in body.layers:
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.momentum = 0.8  # a hundred steps must do for the averages that the frozen body will use
        first = unisono.adopt(keras.Sequential([body, keras.layers.Dense(5)]))
        compiled(first, 2e-3)
    x, y = load_digits(range(0, 5))
    first.fit(x, y, batch_size=BATCH, epochs=6)

    with strategy.scope():
        body.trainable = False
        second = unisono.adopt(keras.Sequential([body, keras.layers.Dense(5)]))
        compiled(second, 2e-2)
    frozen = [w.numpy() for w in body.weights]
    x, y = load_digits(range(5, 10))
    second.fit(x, y, batch_size=BATCH, epochs=5)
    unchanged = all(np.array_equal(before, w.numpy()) for before, w in zip(frozen, body.weights, strict=True))
    print(f"\nthe frozen body is {'unchanged' if unchanged else 'CHANGED'}")


if __name__ == "__main__":
    main()
