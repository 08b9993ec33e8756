"""Collectives that TensorFlow has and `tf.distribute` does not offer, launched like TensorFlow's own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute.values import PerReplica
from tensorflow.python.ops.collective_ops import all_to_all_v2


def launchers_of(strategy: tf.distribute.Strategy) -> list[Any]:
    """The launchers of collectives, one for each local replica of a strategy of several workers.

    They share the group, instance keys and ordering tokens of the all-reduces, so all collectives run in one order.
    """
    return list(strategy.extended._cross_device_ops._launchers)


def all_to_all(launcher: Any, rows: tf.Tensor) -> tf.Tensor:
    """Sends matrix row r of `rows` to replica r; matrix row s of the result comes from replica s. The shapes are equal.

    Context: a graph; once for each replica of the strategy.
    """
    instance_key, options = launcher._next_instance_key(), launcher._options
    with tf.device(launcher._device):
        received: Any = all_to_all_v2(
            rows,
            launcher._group_size,
            launcher._group_key,
            instance_key,
            communication_hint=options.implementation.value,
            timeout=options.timeout_seconds or 0,
            ordering_token=launcher._get_ordering_token(),
        )
        received.set_shape(rows.shape)
        return received


def all_gather(launcher: Any, shard: tf.Tensor) -> tf.Tensor:
    """Concatenates the tensors of all replicas; their shapes are equal. Context as `all_to_all`."""
    gathered: Any = launcher._all_gather(shard, None)
    gathered.set_shape([launcher._group_size * shard.shape[0], *shard.shape[1:]])
    return gathered


def per_replica(values: Sequence[Any]) -> Any:
    """One value for each local replica, as `merge_call` returns them."""
    return PerReplica(list(values))
