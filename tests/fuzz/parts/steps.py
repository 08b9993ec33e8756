"""Steps that users write: mixins for any class of model. `batch` is the global batch that the user would name."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from .losses import across


def _squares(y, y_pred):
    return tf.reduce_mean(tf.square(y - tf.cast(y_pred, y.dtype)), axis=-1)


def own_step(step: str, batch: int, own_test_step: bool) -> list[type]:
    """The mixins of a case's step."""
    if step == "keras":
        return []
    kind, _, name = step.partition(" ")
    if kind == "compute_loss":
        return [_with_compute_loss(COMPUTED[name], batch)]
    mixins = [_with_train_step(STEPPED[name], batch)]
    return [_with_test_step(), *mixins] if own_test_step else mixins


def _with_compute_loss(value: Any, batch: int) -> type:
    class OwnComputeLoss:
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            if value is None:
                loss = super().compute_loss(x, y, y_pred, sample_weight, training)
                return loss + 0.1 * tf.cast(tf.reduce_mean(tf.square(y_pred)), loss.dtype)
            return value(y, y_pred, batch)

    return OwnComputeLoss


def _with_train_step(value: Any, batch: int) -> type:
    class OwnTrainStep:
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                if value is None:
                    loss = self.compute_loss(x=x, y=y, y_pred=y_pred)
                else:
                    loss = value(y, y_pred, batch)
                loss = self.optimizer.scale_loss(loss)
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))
            logs = self.compute_metrics(x, y, y_pred)
            logs.pop("loss", None)  # no loss has been counted
            return {**logs, "error": tf.reduce_mean(_squares(y, y_pred))}

    return OwnTrainStep


def _with_test_step() -> type:
    class OwnTestStep:
        def test_step(self, data):
            x, y = data
            y_pred = self(x, training=False)
            logs = self.compute_metrics(x, y, y_pred)
            return {**logs, "loss": tf.reduce_mean(_squares(y, y_pred))}

    return OwnTestStep


COMPUTED: dict[str, Any] = {
    "adds a mean": None,
    "mean": lambda y, y_pred, batch: tf.reduce_mean(_squares(y, y_pred)),
    "sum": lambda y, y_pred, batch: tf.reduce_sum(_squares(y, y_pred)),
    "across": lambda y, y_pred, batch: across(y, tf.cast(y_pred, y.dtype)),
    "by global batch": lambda y, y_pred, batch: tf.reduce_sum(_squares(y, y_pred)) / batch,
}

STEPPED: dict[str, Any] = {
    "compute_loss": None,
    "mean": lambda y, y_pred, batch: tf.reduce_mean(_squares(y, y_pred)),
    "sum": lambda y, y_pred, batch: tf.reduce_sum(_squares(y, y_pred)),
    "rows": lambda y, y_pred, batch: _squares(y, y_pred),
    "by global batch": lambda y, y_pred, batch: tf.reduce_sum(_squares(y, y_pred)) / batch,
    "by replicas": lambda y, y_pred, batch: (
        tf.reduce_mean(_squares(y, y_pred)) / tf.distribute.get_strategy().num_replicas_in_sync
    ),
    "average loss": lambda y, y_pred, batch: tf.nn.compute_average_loss(
        _squares(y, y_pred), global_batch_size=batch
    ),
    "Loss object": lambda y, y_pred, batch: keras.losses.MeanSquaredError()(y, y_pred),
    "Loss object sum": lambda y, y_pred, batch: keras.losses.MeanSquaredError(reduction="sum")(y, y_pred),
    "Loss object none": lambda y, y_pred, batch: keras.losses.MeanSquaredError(reduction="none")(y, y_pred),
}
