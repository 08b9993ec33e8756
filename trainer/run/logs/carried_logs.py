"""Carries the logs of a custom step from the last step of a loop in the graph to its end, and sums those of replicas."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import graph_function
from ....distribute.replicas import all_reduce_sum_packed, carried_as, local_replica_index


@dataclasses.dataclass
class Shares:
    """The logs of a step that replicas share: those of each replica of this process.

    A loop carries them as they are, so that replicas exchange the logs of its last step alone. `sums` says of each number in
    them whether it is a part of a sum over the replicas, or equal on all.
    """

    logs: list[dict[str, Any]]
    sums: list[bool]
    strategy: tf.distribute.Strategy

    @classmethod
    def of(cls, logs: dict[str, Any], sums: list[bool], strategy: tf.distribute.Strategy) -> Shares:
        """From the result of `strategy.run`."""
        leaves = [strategy.experimental_local_results(leaf) for leaf in keras.tree.flatten(logs)]
        count = len(strategy.extended.worker_devices)
        return cls([_packed(logs, [each[n] for each in leaves]) for n in range(count)], sums, strategy)


def whole(logs: dict[str, Any] | Shares) -> dict[str, Any]:
    """The logs over all replicas. Context: cross-replica."""
    if not isinstance(logs, Shares):
        return logs
    each, sums, strategy = logs.logs, logs.sums, logs.strategy
    if not any(sums):
        return each[0]

    def totals() -> list[tf.Tensor]:
        own = keras.tree.flatten(each[local_replica_index()])
        parts = [leaf for leaf, is_sum in zip(own, sums) if is_sum]
        found = all_reduce_sum_packed([tf.cast(part, carried_as(part.dtype)) for part in parts])
        return [tf.cast(total, part.dtype) for total, part in zip(found, parts)]

    found = iter(strategy.experimental_local_results(total)[0] for total in strategy.run(totals))
    leaves = zip(keras.tree.flatten(each[0]), sums)
    return _packed(each[0], [next(found) if is_sum else leaf for leaf, is_sum in leaves])


class CarriedLogs:
    """One object for all loops over the steps of a model. Owns the known structure of their logs.

    A loop must declare the types of its variables before the trace of its body determines the logs. So it carries a
    `tf.experimental.Optional` of unknown content for each replica. XLA does not support it: there the logs of an earlier
    trace are the example.
    """

    def __init__(self) -> None:
        self._specs: Any = None
        self._shares: Shares | None = None

    def start(self, probe: Callable[[], dict[str, Any]] | None, replicas: int) -> Any:
        """The initial loop variable, where so many replicas of this process have logs; `probe` traces a step for XLA."""
        if probe is None:
            return [tf.raw_ops.OptionalNone() for _ in range(replicas)]
        specs = keras.tree.flatten(self._specs)
        if None in specs or not all(spec.shape.is_fully_defined() for spec in specs):
            self._specs = _specs(graph_function(probe).get_concrete_function().structured_outputs)
        return self._zeros()

    def after(self, before: Any, logs: dict[str, Any] | Shares) -> Any:
        """The loop variable after a step with these logs; `before`: its value before."""
        self._shares = logs if isinstance(logs, Shares) else None
        each = logs.logs if isinstance(logs, Shares) else [logs]
        if not each[0]:
            return before
        self._specs = _specs(each[0])
        return each[0] if isinstance(before, dict) else [*map(_optional, each)]

    def end(self, carried: Any) -> dict[str, Any] | Shares:
        """The logs of the last step; zeros where there was none. Context: the graph of the loop, after it."""
        if isinstance(carried, dict) or self._specs is None:
            return carried if isinstance(carried, dict) else {}
        each = [*map(self._content, carried)]
        return each[0] if self._shares is None else dataclasses.replace(self._shares, logs=each)

    def _content(self, carried: tf.Tensor) -> dict[str, Any]:
        specs = keras.tree.flatten(self._specs)
        types, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]
        leaves = tf.cond(
            tf.raw_ops.OptionalHasValue(optional=carried),
            lambda: tf.raw_ops.OptionalGetValue(optional=carried, output_types=types, output_shapes=shapes),
            lambda: keras.tree.flatten(self._zeros()),
        )
        return _packed(self._specs, leaves)

    def _zeros(self) -> Any:
        return keras.tree.map_structure(
            lambda spec: tf.zeros([size or 0 for size in spec.shape], spec.dtype), self._specs
        )


def _optional(logs: dict[str, Any]) -> tf.Tensor:
    leaves = keras.tree.flatten(logs)
    with tf.device(leaves[0].device):  # TensorFlow would choose the host, which would wait for them
        return tf.raw_ops.OptionalFromValue(components=leaves)


def _packed(logs: dict[str, Any], leaves: list[Any]) -> dict[str, Any]:
    return keras.tree.pack_sequence_as(logs, leaves)


def _specs(logs: dict[str, Any]) -> Any:
    return keras.tree.map_structure(tf.TensorSpec.from_tensor, logs)
