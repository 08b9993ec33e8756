"""Carries the logs of a custom step from the last step of a loop in the graph to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_function


class CarriedLogs:
    """One object for all loops over the steps of a model. Owns the known structure of their logs.

    A loop must declare the types of its variables before the trace of its body determines the logs. So it carries a
    `tf.experimental.Optional` of unknown content. XLA does not support it: there the logs of an earlier trace are the
    example.

    Args:
        present: () -> bool; whether the steps return logs that are not metrics.
    """

    def __init__(self, present: Callable[[], bool]) -> None:
        self._present = present
        self._specs: Any = None

    def start(self, probe: Callable[[], dict[str, Any]] | None = None) -> Any:
        """The initial loop variable. `probe`: traces a step, for XLA; None: not for XLA."""
        if not self._present():
            return {}
        if probe is None:
            return tf.raw_ops.OptionalNone()
        if not self._sizes_are_known():
            self._specs = _specs(graph_function(probe).get_concrete_function().structured_outputs)
        return self._zeros()

    def after(self, before: Any, logs: dict[str, Any]) -> Any:
        """The loop variable after a step with these logs; `before`: its value before."""
        if not logs:
            return before
        self._specs = _specs(logs)
        if isinstance(before, dict):
            return logs
        leaves = keras.tree.flatten(logs)
        with tf.device(leaves[0].device):  # TensorFlow would choose the host, which would wait for them
            return tf.raw_ops.OptionalFromValue(components=leaves)

    def end(self, carried: Any) -> dict[str, Any]:
        """The logs of the last step; zeros where there was none. Context: the graph of the loop, after it."""
        if isinstance(carried, dict) or self._specs is None:
            return carried if isinstance(carried, dict) else {}
        specs = keras.tree.flatten(self._specs)
        types, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
        leaves = tf.cond(
            tf.raw_ops.OptionalHasValue(optional=carried),
            lambda: tf.raw_ops.OptionalGetValue(optional=carried, output_types=types, output_shapes=shapes),
            lambda: keras.tree.flatten(self._zeros()),
        )
        return keras.tree.pack_sequence_as(self._specs, leaves)

    def _sizes_are_known(self) -> bool:
        specs = keras.tree.flatten(self._specs)
        return None not in specs and all(spec.shape.is_fully_defined() for spec in specs)

    def _zeros(self) -> Any:
        return keras.tree.map_structure(
            lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype), self._specs
        )


def _specs(logs: dict[str, Any]) -> Any:
    return keras.tree.map_structure(tf.TensorSpec.from_tensor, logs)
