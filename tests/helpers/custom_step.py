"""A model with a custom `train_step`, for tests of steps traced for GPUs."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import unisono


class CustomStep(unisono.Model):
    """A custom `train_step` that returns logs without a metric."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            outputs = self(x, training=True)
            loss = self.compute_loss(x, y, outputs)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss, "mean": tf.reduce_mean(outputs), **self.more_logs(gradients)}

    def more_logs(self, gradients: Any) -> dict[str, Any]:
        return {}
