"""Update rules on variables or slots in parts by rows: each part where it is, where the rule allows.

On parameter servers a variable and its slots are in parts; in a pipeline with replicas the slots alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..compat.optimizers import know_variable, variable_key
from ..compat.variables import holding
from ..distribute.parameter_servers.shards import rows_of
from ..distribute.parameter_servers.updates import beside, shards_of
from ..distribute.sharding.rows import devices_of_slots, rows_of_parts
from ..distribute.sharding.value import TensorInPlace
from .stages.users_code import ELEMENTWISE


def updates_of(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """What `update_step` is called with: (gradient, variable) once, or once for each part, where it is.

    A rule that treats each number by itself is run on each part with its part of the slots. Any other sees the whole.
    `copy` is the local copy of the whole variable.
    """
    shards = shards_of(copy)
    if devices_of_slots(variable) and is_elementwise(optimizer):
        yield from _beside_slots(optimizer, gradient, variable, copy)
        return
    if shards is None or not is_elementwise(optimizer):
        with beside(copy):
            yield gradient, copy
        return
    first = 0
    for index, shard in enumerate(shards):
        rows = rows_of(shard)
        with beside(shard), _slots_of_shard(optimizer, index):
            yield _rows_of(gradient, first, rows), shard
        first += rows


def _beside_slots(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """The parts of a whole variable whose slots are in parts: what the rule makes of its rows is then written at once."""
    first, new = 0, []
    whole, key = tf.convert_to_tensor(copy), variable_key(optimizer, variable)
    for index, (device, rows) in enumerate(zip(devices_of_slots(variable), rows_of_parts(variable))):
        with tf.device(device), _slots_of_shard(optimizer, index):
            place = TensorInPlace(key, whole[first : first + rows], variable.name)
            yield _rows_of(gradient, first, rows), place
        new.append(place)
        first += rows
    with tf.device(copy.device):
        copy.assign(tf.concat([place.tensor for place in new], 0))


def is_elementwise(optimizer: Any) -> bool:
    """Whether the optimizer's update rule treats each number by itself: one of Keras' that do, or one that says so.

    A class that has an `update_step` of its own says it with the attribute `elementwise = True`.
    """
    rule = type(optimizer).update_step
    owner = next(cls for cls in type(optimizer).__mro__ if "update_step" in vars(cls))
    return vars(owner).get("elementwise") is True or any(rule is cls.update_step for cls in ELEMENTWISE)


def _rows_of(gradient: Any, first: int, rows: int) -> Any:
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient[first : first + rows]
    inside = tf.logical_and(gradient.indices >= first, gradient.indices < first + rows)
    indices = tf.boolean_mask(gradient.indices, inside) - first
    shape = tf.constant([rows, *gradient.values.shape.as_list()[1:]], tf.int64)  # pyright: ignore[reportArgumentType]
    return tf.IndexedSlices(tf.boolean_mask(gradient.values, inside), indices, shape)


@contextlib.contextmanager
def _slots_of_shard(optimizer: Any, index: int) -> Iterator[None]:
    """While the rule of one shard is traced, the slots are those of the shard."""
    with contextlib.ExitStack() as stack:
        for slot in optimizer.variables:
            parts = shards_of(slot) or ()
            if len(parts) > index:
                stack.enter_context(holding(slot, parts[index]))
        yield


def register_shards(optimizer: Any, variables: Sequence[Any]) -> None:
    """Lets the optimizer find the slots of a variable by each of its shards. Context: host, after `build`."""
    for index, variable in enumerate(variables):
        for shard in shards_of(variable) or ():
            know_variable(optimizer, shard, index)
