"""A step before it is partitioned: the single-device program, and the objects that it can reach."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ....compat.keras_private.variables import raw_value, sums_on_read
from ....distribute.sharding.sharded_value import ShardedValue
from ..labels import LOGS, Label


@dataclasses.dataclass(frozen=True)
class Step:
    """The single-device program.

    Attributes:
        fn: `fn(batch)`: a nest of numbers, such as logs or outputs. User code in it runs once for each trace.
        strategy: the strategy whose replicas share it.
        name: for warnings.
        layers: that it can call; a `BatchNormalization` among them keeps statistics for each replica.
        variables: that it can read, with those of metrics.
        exits: the requested label of its outputs: LOGS, SAMPLES or SHARES.
        notes_weights: whether the divisors of losses are recorded for optimizers that accumulate gradients.
    """

    fn: Callable[[Any], Any]
    strategy: tf.distribute.Strategy
    name: str
    layers: Sequence[keras.layers.Layer] = ()
    variables: Sequence[keras.Variable] = ()
    exits: Label = LOGS
    notes_weights: bool = False

    @property
    def totals(self) -> list[keras.Variable]:
        """The variables whose value is the sum of the copies of all replicas."""
        return [variable for variable in self.variables if sums_on_read(raw_value(variable))]

    @property
    def sharded(self) -> list[ShardedValue]:
        """The sharded weights."""
        return [v for v in map(raw_value, self.variables) if isinstance(v, ShardedValue)]


def numbers_in(results: Any) -> list[tf.Tensor]:
    """The tensors among the results of a step; None and text are passed through unchanged."""
    return [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(results) if _is_number(leaf)]


def with_numbers(results: Any, numbers: Sequence[tf.Tensor]) -> Any:
    """The results of a step with other tensors."""
    rest = iter(numbers)
    return tf.nest.map_structure(lambda leaf: next(rest) if _is_number(leaf) else leaf, results)


def _is_number(leaf: Any) -> bool:
    return leaf is not None and not isinstance(leaf, str | bytes)
