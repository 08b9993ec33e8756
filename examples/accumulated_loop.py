"""A custom loop with gradient accumulation and loss scaling, on two replicas: eight batches of 16 equal one of 128.

The program trains twice from the same weights: with batches of 128 samples, and with batches of 16 samples, eight per
update. The weights agree to rounding, although one sample of the last group is far outside of float16's range: the whole
group is skipped on both replicas, and the loss scale is halved.
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono

# Samples of one update.
GROUP = 128


class Training:
    """A model, an optimizer and a compiled step."""

    def __init__(self, strategy: tf.distribute.Strategy, calls_per_update: int | None = None) -> None:
        keras.utils.set_random_seed(1)
        self.strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10, dtype="float32")]
            )
            adam = unisono.optimizers.Adam(
                2e-3, gradient_accumulation_steps=calls_per_update, global_clipnorm=1.0
            )
            self.optimizer = unisono.mixed_precision.LossScaleOptimizer(adam, initial_scale=2.0**12)
            self.optimizer.build(self.model.trainable_variables)
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def step(self, batch: Any) -> tf.Tensor:
        """One call: its gradient is added to those before it, and every so many calls the sum is applied."""

        @unisono.replica_step
        def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                loss = self.loss_fn(y, self.model(x, training=True))
            self.optimizer.minimize(loss, self.model.trainable_variables, tape=tape)
            return loss

        return self.strategy.reduce("SUM", self.strategy.run(replica_step, args=batch), axis=None)

    def run(self, x: np.ndarray, y: np.ndarray, rows: int) -> None:
        """One pass over the data, `rows` of it in each call."""
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(rows)
        batches = self.strategy.experimental_distribute_dataset(dataset)
        losses = [float(self.step(batch)) for batch in batches]
        print(
            f"{len(losses):3} calls with {rows:3} samples: {self.optimizer.iterations.numpy()} updates, "
            f"{self.optimizer.skipped_steps.numpy()} skipped, loss scale {self.optimizer.dynamic_scale.numpy():g}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=14, help="updates; with 14 all of the digits")
    rows = parser.parse_args().groups * GROUP
    unisono.mixed_precision.set_global_policy("mixed_float16")
    unisono.distribute.simulate_devices(2)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    digits = sklearn.datasets.load_digits()
    x = (digits.data[:rows] / 16).astype("float32")
    x[-3] = 1e30
    y = digits.target[:rows]

    whole, accumulated = Training(strategy), Training(strategy, calls_per_update=8)
    whole.run(x, y, GROUP)
    accumulated.run(x, y, GROUP // 8)
    pairs = zip(whole.model.get_weights(), accumulated.model.get_weights(), strict=True)
    difference = max(float(np.abs(one - other).max()) for one, other in pairs)
    print(f"largest difference of a weight: {difference:.1e}")


if __name__ == "__main__":
    main()
