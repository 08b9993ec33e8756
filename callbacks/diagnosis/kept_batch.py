"""Keeps the batch of the last good-so-far step on the device, so that it can be looked at when a step goes wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...optimizers.stages.gradient_watch import GradientWatch


class BatchWatch:
    """A copy of each batch, overwritten by the next one until a guard has tripped.

    Args:
        spec: nest of `tf.TypeSpec`: a batch, as `Source.spec` says.
        guards: the watches of the optimizers; once one of them has tripped, the batch stays.

    Context: host, inside the strategy's scope.
    """

    def __init__(self, spec: Any, guards: Sequence[GradientWatch]) -> None:
        self._spec = spec
        self._guards = list(guards)
        self._kept: list[Any] = [_room_for(s) for s in tf.nest.flatten(spec)]
        self.complete = all(room is not None for room in self._kept)

    def look(self, batch: Any) -> None:
        """Keeps `batch`, a global batch. Context: cross-replica, while the step is traced."""
        values = tf.nest.flatten(batch)
        if len(values) != len(self._kept):
            return

        def keep() -> tf.Tensor:
            for room, value in zip(self._kept, values):
                if room is not None and isinstance(value, tf.Tensor) and room.dtype == value.dtype:
                    room.assign(value)
            return tf.constant(True)

        tripped = tf.reduce_any(tf.stack([guard.has_tripped() for guard in self._guards]))
        tf.cond(tripped, lambda: tf.constant(False), keep)

    @property
    def batch(self) -> Any:
        """The batch that was kept last; None if a part of it is ragged, sparse or of another kind that is not kept."""
        if not self.complete:
            return None
        return tf.nest.pack_sequence_as(self._spec, [room.read_value() for room in self._kept])


def _room_for(spec: Any) -> Any:
    if not isinstance(spec, tf.TensorSpec) or spec.dtype in (tf.resource, tf.variant):
        return None
    shape = [size or 0 for size in (spec.shape.as_list() if spec.shape.rank is not None else [0])]
    initial: Any = tf.zeros(shape, spec.dtype) if spec.dtype != tf.string else tf.fill(shape, "")
    with tf.init_scope(), tf.device("CPU:0"):
        any_shape: Any = None
        return tf.Variable(initial, trainable=False, shape=tf.TensorShape(any_shape))
