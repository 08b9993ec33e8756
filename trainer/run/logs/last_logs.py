"""Keeps the logs of a custom step for the end of a loop in the graph, and sums those of replicas."""

from __future__ import annotations

import dataclasses
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.variables import plain_variable
from ....distribute.replicas import all_reduce_sum_packed, from_carrier, local_replica_index, to_carrier


@dataclasses.dataclass
class Shares:
    """The logs of this process' replicas; `sums`: which are parts of sums, exchanged after a loop's last step alone."""

    logs: list[dict[str, Any]]
    sums: list[bool]
    strategy: tf.distribute.Strategy

    @classmethod
    def of(cls, logs: dict[str, Any], sums: list[bool], strategy: tf.distribute.Strategy) -> Shares:
        """Return the shares in the result of `strategy.run`."""
        each: list[Any] = [
            keras.tree.map_structure(lambda leaf, n=n: strategy.experimental_local_results(leaf)[n], logs)
            for n in range(len(strategy.extended.worker_devices))
        ]
        return cls(each, sums, strategy)


def whole(logs: dict[str, Any] | Shares) -> dict[str, Any]:
    """Return the logs over all replicas. Context: cross-replica."""
    if not isinstance(logs, Shares):
        return logs
    each, sums, strategy = logs.logs, logs.sums, logs.strategy
    if not any(sums):
        return each[0]

    def totals() -> list[tf.Tensor]:
        own = keras.tree.flatten(each[local_replica_index()])
        parts = [leaf for leaf, is_sum in zip(own, sums) if is_sum]
        found = all_reduce_sum_packed([*map(to_carrier, parts)])
        return [from_carrier(total, part.dtype) for total, part in zip(found, parts)]

    found = iter(strategy.experimental_local_results(total)[0] for total in strategy.run(totals))
    leaves = zip(keras.tree.flatten(each[0]), sums)
    return keras.tree.pack_sequence_as(each[0], [next(found) if is_sum else leaf for leaf, is_sum in leaves])


class LastLogs:
    """Owns variables for a custom step's logs: a loop must declare the types of what it carries before it is traced."""

    def __init__(self) -> None:
        self._variables: dict[Any, list[tf.Variable]] = {}
        self._kept: tuple[Any, list[tf.Variable]] | None = None

    def keep(self, logs: dict[str, Any] | Shares, device: str | None) -> None:
        """Keep the logs of a step, on this device or, if it is None, where they are. Context: the body of the loop."""
        leaves = keras.tree.flatten(logs.logs if isinstance(logs, Shares) else logs)
        key = str([(leaf.shape, leaf.dtype, device or leaf.device) for leaf in leaves])
        if key not in self._variables:
            self._variables[key] = [_variable(leaf, device or leaf.device) for leaf in leaves]
        for variable, leaf in zip(self._variables[key], leaves):
            variable.assign(tf.cast(leaf, variable.dtype), read_value=False)
        self._kept = logs, self._variables[key]

    def take(self) -> dict[str, Any] | Shares:
        """Return the logs of the last step. Context: the graph of the loop, after it."""
        (logs, variables), self._kept = self._kept or ({}, []), None
        each = logs.logs if isinstance(logs, Shares) else logs
        leaves = [tf.cast(kept, leaf.dtype) for kept, leaf in zip(variables, keras.tree.flatten(each))]
        each = keras.tree.pack_sequence_as(each, leaves)
        return dataclasses.replace(logs, logs=each) if isinstance(logs, Shares) else each


def _variable(log: tf.Tensor, device: str) -> tf.Variable:
    """Create a variable for logs of this shape; integers in int64, as TensorFlow keeps int32, like text, on the host."""
    dtype = tf.int64 if log.dtype.is_integer else log.dtype
    with tf.init_scope(), tf.device("CPU:0" if dtype == tf.string else device):
        sizes = [size or 0 for size in log.shape] if log.shape.rank is not None else []
        return plain_variable(tf.zeros(sizes, dtype), log.shape)
