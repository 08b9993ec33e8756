"""Custom steps: mixins for any model class. `batch` is the global batch size that the user would pass."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

import unisono

from .losses import across


def _squares(y, y_pred):
    return tf.reduce_mean(tf.square(y - tf.cast(y_pred, y.dtype)), axis=-1)


def custom_step(step: str, batch: int, own_test_step: bool) -> list[type]:
    """The mixins for the step of a case."""
    if step == "keras":
        return []
    kind, _, name = step.partition(" ")
    if kind == "compute_loss":
        return [_with_compute_loss(COMPUTED[name], batch)]
    if name == "of x alone":
        return [OwnStepsOfX]
    if name == "two optimizers":
        return [TwoOptimizers]
    clip = {"clips": _apply_clipped, "clips its own": _apply_clipped_by_hand}.get(name)
    mixins = [_with_train_step(STEPPED[name], batch, clip, tracks=name.startswith("tracks"))]
    return [OwnTestStep, *mixins] if own_test_step else mixins


def _with_compute_loss(value: Any, batch: int) -> type:
    class OwnComputeLoss:
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            if value is None:
                loss = super().compute_loss(x, y, y_pred, sample_weight, training)
                return loss + 0.1 * tf.cast(tf.reduce_mean(tf.square(y_pred)), loss.dtype)
            return value(y, y_pred, batch)

    return OwnComputeLoss


def _with_train_step(value: Any, batch: int, clip: Any, tracks: bool) -> type:
    class OwnTrainStep:
        def __init__(self, *arguments, **named):
            super().__init__(*arguments, **named)
            if tracks:
                self.tracker = keras.metrics.Mean(name="tracked")

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
            pairs = list(zip(tape.gradient(loss, weights), weights))
            if clip is not None:
                clip(self.optimizer, pairs)
            else:
                self.optimizer.apply_gradients(pairs)
            if tracks:
                self.tracker.update_state(loss)
            logs = self.compute_metrics(x, y, y_pred)
            logs.pop("loss", None)  # no loss was tracked
            return {**logs, "error": tf.reduce_mean(_squares(y, y_pred))}

    return OwnTrainStep


def _apply_clipped(optimizer: Any, pairs: list[Any]) -> None:
    """Clips by the global norm of all gradients; with Unisono, of the aggregated gradients."""
    ours = hasattr(optimizer, "aggregate_gradients")
    gradients = [gradient for gradient, _ in (optimizer.aggregate_gradients(pairs) if ours else pairs)]
    clipped = zip(tf.clip_by_global_norm(gradients, 0.1)[0], [variable for _, variable in pairs])
    optimizer.apply_gradients(clipped, **({"skip_gradients_aggregation": True} if ours else {}))


def _apply_clipped_by_hand(optimizer: Any, pairs: list[Any]) -> None:
    """Clips by the global norm of all gradients, as a step in Keras does."""
    clipped = tf.clip_by_global_norm([gradient for gradient, _ in pairs], 0.1)[0]
    optimizer.apply_gradients(zip(clipped, [variable for _, variable in pairs]))


def _masked(errors: tf.Tensor) -> tf.Tensor:
    """A mean over the errors that are not small; their number differs between replicas."""
    counts = tf.cast(errors > 0.5, errors.dtype)
    return tf.reduce_sum(errors * counts) / (tf.reduce_sum(counts) + 1)


class TwoOptimizers:
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.second = keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            y_pred = self(x, training=True)
            loss = tf.reduce_mean(_squares(y, y_pred))
            scaled = self.optimizer.scale_loss(loss)
        mine, others = self.trainable_variables[::2], self.trainable_variables[1::2]
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, mine), mine))
        self.second.apply_gradients(zip(tape.gradient(loss, others), others))
        logs = self.compute_metrics(x, y, y_pred)
        logs.pop("loss", None)  # no loss was tracked
        return {**logs, "error": loss}


class OwnStepsOfX:
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.tracker = keras.metrics.Mean(name="reconstruction")

    @property
    def metrics(self):
        return [self.tracker]

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.value(data, True)
            scaled = self.optimizer.scale_loss(loss)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(scaled, weights), weights))
        self.tracker.update_state(loss)
        return {"reconstruction": self.tracker.result()}

    def test_step(self, data):
        self.tracker.update_state(self.value(data, False))
        return {"reconstruction": self.tracker.result()}

    def value(self, data, training):
        if isinstance(data, tuple) and len(data) == 1:  # from a PyDataset or a generator, in Keras
            data = data[0]
        y_pred = self(data, training=training)
        return tf.reduce_mean(tf.square(y_pred - tf.cast(0.3, y_pred.dtype)))


class OwnTestStep:
    def test_step(self, data):
        x, y = data
        y_pred = self(x, training=False)
        logs = self.compute_metrics(x, y, y_pred)
        return {**logs, "loss": tf.reduce_mean(_squares(y, y_pred))}


COMPUTED: dict[str, Any] = {
    "adds a mean": None,
    "mean": lambda y, y_pred, batch: tf.reduce_mean(_squares(y, y_pred)),
    "sum": lambda y, y_pred, batch: tf.reduce_sum(_squares(y, y_pred)),
    "across": lambda y, y_pred, batch: across(y, tf.cast(y_pred, y.dtype)),
    "by global batch": lambda y, y_pred, batch: tf.reduce_sum(_squares(y, y_pred)) / batch,
}

STEPPED: dict[str, Any] = {
    **COMPUTED,
    **dict.fromkeys(("clips", "clips its own", "tracks a mean"), COMPUTED["mean"]),
    "tracks a sum": COMPUTED["sum"],
    "compares samples": COMPUTED["across"],
    "compute_loss": None,
    "samples": lambda y, y_pred, batch: _squares(y, y_pred),
    "by replicas": lambda y, y_pred, batch: (
        tf.reduce_mean(_squares(y, y_pred)) / tf.distribute.get_strategy().num_replicas_in_sync
    ),
    "average loss": lambda y, y_pred, batch: tf.nn.compute_average_loss(
        _squares(y, y_pred), global_batch_size=batch
    ),
    "gathered": lambda y, y_pred, batch: across(*unisono.distribute.gather((y, tf.cast(y_pred, y.dtype)))),
    "masked": lambda y, y_pred, batch: _masked(_squares(y, y_pred)),
    "Loss object": lambda y, y_pred, batch: keras.losses.MeanSquaredError()(y, y_pred),
    "Loss object sum": lambda y, y_pred, batch: keras.losses.MeanSquaredError(reduction="sum")(y, y_pred),
    "Loss object none": lambda y, y_pred, batch: keras.losses.MeanSquaredError(reduction="none")(y, y_pred),
}
