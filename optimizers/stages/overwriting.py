"""Gradients that are the new values of their variables, as Keras' float8 layers give them."""

from __future__ import annotations

import tensorflow as tf

from ...distribute.replicas import all_reduce_sum, num_replicas, replica_id
from ...distribute.step_context import current_step


def largest(value: tf.Tensor) -> tf.Tensor:
    """The largest value over the replicas, element by element: how Keras joins the new scales of float8 layers."""
    step, replicas = current_step(), num_replicas()
    if step is not None:
        value = tf.where(step.alive, value, tf.zeros_like(value))
    mine = tf.reshape(
        tf.one_hot(replica_id(), replicas, dtype=value.dtype), [replicas] + [1] * value.shape.rank
    )
    return tf.reduce_max(all_reduce_sum([mine * value])[0], axis=0)
