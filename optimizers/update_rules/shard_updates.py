"""Update rules on variables or optimizer state that are sharded by rows of a matrix: each shard on its device, if possible.

On parameter servers a variable and its state are sharded; in a pipeline with replicas the state alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.optimizers import know_variable, variable_key
from ...compat.keras_private.variables import holding
from ...distribute.parameter_servers.shards import rows_of
from ...distribute.parameter_servers.updates import colocated_with, shards_of
from ...distribute.sharding.row_sharding import rows_per_shard, state_devices
from ...distribute.sharding.sharded_value import TensorInPlace
from ..stages.sparse_gradients import is_sparse
from ..stages.user_code import is_elementwise


def updates_of(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """The arguments of `update_step`: (gradient, variable) once, or once for each shard, on its device.

    A rule that treats each number by itself is run on each shard with its shard of the state. Any other sees the whole.
    `copy` is the local copy of the whole variable.
    """
    shards = shards_of(copy)
    if state_devices(variable) and is_elementwise(optimizer):
        yield from _next_to_state(optimizer, gradient, variable, copy)
        return
    if shards is None or not is_elementwise(optimizer):
        with colocated_with(copy):
            yield gradient, copy
        return
    first = 0
    for index, shard in enumerate(shards):
        rows = rows_of(shard)
        with colocated_with(shard), _state_of_shard(optimizer, index):
            yield _rows_of(gradient, first, rows), shard
        first += rows


def _next_to_state(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """The shards of a whole variable whose state is sharded by rows of the matrix: the new ones are then written at once."""
    first, new = 0, []
    whole, key = tf.convert_to_tensor(copy), variable_key(optimizer, variable)
    for index, (device, rows) in enumerate(zip(state_devices(variable), rows_per_shard(variable))):
        with tf.device(device), _state_of_shard(optimizer, index):
            place = TensorInPlace(key, whole[first : first + rows], variable.name)
            yield _rows_of(gradient, first, rows), place
        new.append(place)
        first += rows
    with tf.device(copy.device):
        copy.assign(tf.concat([place.tensor for place in new], 0))


def _rows_of(gradient: Any, first: int, rows: int) -> Any:
    if not is_sparse(gradient):
        return gradient[first : first + rows]
    inside = tf.logical_and(gradient.indices >= first, gradient.indices < first + rows)
    indices = tf.boolean_mask(gradient.indices, inside) - first
    shape = tf.constant([rows, *gradient.values.shape.as_list()[1:]], tf.int64)  # pyright: ignore[reportArgumentType]
    return tf.IndexedSlices(tf.boolean_mask(gradient.values, inside), indices, shape)


@contextlib.contextmanager
def _state_of_shard(optimizer: Any, index: int) -> Iterator[None]:
    """While the rule of one shard is traced, the state is that of the shard."""
    with contextlib.ExitStack() as stack:
        for state in optimizer.variables:
            shards = shards_of(state) or ()
            if len(shards) > index:
                stack.enter_context(holding(state, shards[index]))
        yield


def register_shards(optimizer: Any, variables: Sequence[Any]) -> None:
    """Lets the optimizer find the state of a variable by each of its shards. Context: host, after `build`."""
    for index, variable in enumerate(variables):
        for shard in shards_of(variable) or ():
            know_variable(optimizer, shard, index)
