"""Sharded optimizer state: each of four replicas stores a quarter of Adam's state, with the single-device result.

Both models train on the same batches. What changes is only the strategy, and what each replica keeps in memory.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono


def make_model(strategy: tf.distribute.Strategy) -> unisono.Sequential:
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = unisono.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            unisono.optimizers.AdamW(1e-3, global_clipnorm=1.0),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of an epoch; default: all samples")
    options = parser.parse_args()
    devices = unisono.distribute.simulate_devices(4)  # with GPUs: all of them, without this line
    x, y = sklearn.datasets.load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    how = {"batch_size": 99, "epochs": options.epochs, "steps_per_epoch": options.steps, "verbose": 2}

    print("one device")
    one = make_model(tf.distribute.get_strategy())
    one.fit(x, y, **how)

    print("\nfour replicas, each with a quarter of the optimizer state")
    strategy = unisono.distribute.sharded(tf.distribute.MirroredStrategy(devices))
    four = make_model(strategy)
    four.fit(x, y, **how)
    four.save(
        "sharded.keras"
    )  # the full state: plain Keras opens it, and so does any other number of replicas
    again = unisono.load_model("sharded.keras")

    weights = sum(int(np.prod(weight.shape)) for weight in four.trainable_weights)
    print(
        f"state of {weights:,} weights: {8 * weights / 1e6:.2f} MB on one device, {2 * weights / 1e6:.2f} MB on each replica"
    )
    for name, model in (("one device and four replicas", one), ("saved and loaded", again)):
        pairs = zip(four.get_weights(), model.get_weights(), strict=True)
        print(
            f"largest difference of a weight, {name}: {max(float(np.abs(a - b).max()) for a, b in pairs):.1e}"
        )


if __name__ == "__main__":
    main()
