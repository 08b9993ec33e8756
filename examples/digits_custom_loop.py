"""A custom training loop on handwritten digits: loop, evaluation, metrics, checkpoint. Two replicas match one device.

Trains a small network on the 1,797 real digits of scikit-learn with `strategy.run`, on one device and on two logical
ones, and compares every weight, then goes on from the checkpoint in the middle and ends with the same bits. Run it with
`python examples/digits_custom_loop.py [FOLDER]`.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import sklearn.datasets
import tensorflow as tf

import unisono

EPOCHS, TEST_ROWS = 4, 360
# Samples of a global batch. They do not divide by two; the last batch of an epoch has 9.
BATCH = 51
# Of any weight at the end, in float32: two replicas add in a different order.
LARGEST_DIFFERENCE = 1e-4


def load_digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Images of shape (samples, 64) with values from 0 to 1, and their labels, for training and for testing."""
    digits = sklearn.datasets.load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    images, labels = (digits.data[order] / 16.0).astype("float32"), digits.target[order].astype("int32")
    return (images[:-TEST_ROWS], labels[:-TEST_ROWS]), (images[-TEST_ROWS:], labels[-TEST_ROWS:])


class Training:
    """Everything that a step reads and writes, created under a strategy, and the steps themselves."""

    def __init__(self, strategy: tf.distribute.Strategy) -> None:
        keras.utils.set_random_seed(7)
        self.strategy = strategy
        with strategy.scope():
            self.model = keras.Sequential(
                [keras.Input((64,)), keras.layers.Dense(64, activation="relu"), keras.layers.Dense(10)]
            )
            rate = unisono.optimizers.schedules.scaled(2e-3, reference_batch_size=32, global_batch_size=BATCH)
            self.optimizer = unisono.optimizers.AdamW(rate, global_clipnorm=1.0, use_ema=True)
            self.optimizer.build(self.model.trainable_variables)
            self.epoch = tf.Variable(0, trainable=False)
            self.accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        self.checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer, epoch=self.epoch)

    @tf.function
    def train_step(self, batch: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """One step on a distributed batch: (loss of the global batch, its samples)."""

        @unisono.replica_step
        def replica_step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                loss = self.loss_fn(y, self.model(x, training=True))
            self.optimizer.minimize(loss, self.model.trainable_variables, tape=tape)
            return loss, tf.shape(y)[0]

        loss, rows = self.strategy.run(replica_step, args=batch)
        return self.strategy.reduce("SUM", loss, axis=None), self.strategy.reduce("SUM", rows, axis=None)

    @tf.function
    def test_step(self, batch: Any) -> None:
        """Counts the right answers of a distributed batch."""

        @unisono.replica_step
        def replica_step(x: tf.Tensor, y: tf.Tensor) -> None:
            self.accuracy.update_state(y, self.model(x, training=False))

        self.strategy.run(replica_step, args=batch)

    def fit(self, train_data: Any, test_data: Any, epochs: int, folder: str | None = None) -> None:
        """Trains up to `epochs`, starting from the checkpoint in `folder`, if any; saves one after each epoch."""
        manager = None
        if folder is not None:
            manager = tf.train.CheckpointManager(self.checkpoint, folder, max_to_keep=2)
            self.checkpoint.restore(manager.latest_checkpoint)
        for epoch in range(int(self.epoch.numpy()), epochs):
            losses = [[float(n) for n in self.train_step(b)] for b in self.batches(train_data, shuffle=epoch)]
            self.accuracy.reset_state()
            for batch in self.batches(test_data):
                self.test_step(batch)
            loss = sum(loss * rows for loss, rows in losses) / sum(rows for _, rows in losses)
            print(f"epoch {epoch + 1}: loss {loss:.4f}, test accuracy {float(self.accuracy.result()):.4f}")
            self.epoch.assign_add(1)
            if manager is not None:
                manager.save()

    def batches(self, data: Any, shuffle: int | None = None) -> Any:
        """The global batches, each split over the replicas; in an order that depends on `shuffle` alone."""
        x, y = data
        order = np.arange(len(y)) if shuffle is None else np.random.default_rng(shuffle).permutation(len(y))
        dataset = tf.data.Dataset.from_tensor_slices((x[order], y[order])).batch(BATCH)
        return self.strategy.experimental_distribute_dataset(dataset)


def main(folder: str | None = None) -> None:
    """Trains on one device, on two replicas, and on two replicas with an interruption; compares the weights."""
    unisono.distribute.simulate_devices(2)
    train_data, test_data = load_digits()
    print("One device")
    one = Training(tf.distribute.get_strategy())
    one.fit(train_data, test_data, EPOCHS)

    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    print("MirroredStrategy, 2 replicas")
    two = Training(strategy)
    two.fit(train_data, test_data, EPOCHS)

    with tempfile.TemporaryDirectory() as scratch:
        checkpoints = str(pathlib.Path(folder or scratch) / "checkpoints")
        print("the same, stopped after 2 epochs ...")
        Training(strategy).fit(train_data, test_data, 2, checkpoints)
        print("... and started again")
        resumed = Training(strategy)
        resumed.fit(train_data, test_data, EPOCHS, checkpoints)

    def difference(a: Training, b: Training) -> float:
        pairs = zip(a.model.get_weights(), b.model.get_weights(), strict=True)
        return max(float(np.max(np.abs(x - y))) for x, y in pairs)

    print(f"largest difference of weights: {difference(one, two):.1e} between one device and two replicas")
    print(f"                               {difference(two, resumed):.1e} between uninterrupted and resumed")
    if difference(one, two) > LARGEST_DIFFERENCE or difference(two, resumed) != 0:
        raise SystemExit("The runs differ by more than they may.")


if __name__ == "__main__":
    main(*sys.argv[1:])
