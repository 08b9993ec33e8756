"""Optimizer state sharded by matrix rows, each shard on its device: the state of the replicas of a pipeline's stage.

The weight is on the stage's first device. The update rule runs for each shard, and the new part is sent back.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.variables import is_plain, name_scope_of, put_inside, raw_value
from ...compat.upstream_places import ShardedVariable
from ..parameter_servers.shards import describe_as_whole, replace_creation

_DEVICES = "state_devices"  # attribute of a Keras variable


def keep_state_on(variable: keras.Variable, devices: Sequence[str]) -> None:
    """Mark a trained variable: its optimizer state is to be sharded by matrix rows over the devices."""
    setattr(variable, _DEVICES, list(devices))


def state_devices(variable: Any) -> list[str]:
    """Return the device of each shard of its optimizer state; empty if it is not sharded, or has left the pipeline."""
    devices = getattr(variable, _DEVICES, [])
    if not devices or not is_plain(raw_value(variable)):
        return []
    rows = int(variable.shape[0]) if len(variable.shape) else 0
    return devices if rows >= len(devices) else []


def rows_per_shard(variable: Any) -> list[int]:
    """Return the matrix rows of each shard; without a whole quotient, the first have one more, as in TensorFlow."""
    rows, count = int(variable.shape[0]), len(state_devices(variable))
    return [rows // count + (part < rows % count) for part in range(count)]


def create_in_rows(reference: Any) -> contextlib.AbstractContextManager[Any]:
    """Shard a variable of the shape of `reference`, created here eagerly, if the optimizer state of `reference` is."""
    if not state_devices(reference):
        return contextlib.nullcontext()

    def create(value: tf.Tensor, next_creator: Any, kwargs: Any) -> Any:
        return _in_rows(value, reference, kwargs.get("name") or "slot")

    return replace_creation(tuple(reference.shape), create)


def move_rows(slot: keras.Variable, reference: Any) -> None:
    """Shard the TensorFlow variable inside existing optimizer state, with its value."""
    if not isinstance(raw_value(slot), ShardedVariable):
        with tf.init_scope(), name_scope_of(raw_value(slot)):
            value = tf.convert_to_tensor(raw_value(slot))
            put_inside(slot, _in_rows(value, reference, slot.name), keeps_id=False)


def _in_rows(value: tf.Tensor, reference: Any, name: str) -> ShardedVariable:
    parts = []
    devices = state_devices(reference)
    for index, (device, part) in enumerate(zip(devices, tf.split(value, rows_per_shard(reference)))):
        with tf.device(device):
            parts.append(tf.Variable(part, trainable=False, name=f"{name}/part_{index}"))
    return describe_as_whole(ShardedVariable(parts))
