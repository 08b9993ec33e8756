"""Variables that are split by rows over parameter servers: looked up, differentiated and updated part by part.

Above this file such a variable is one variable with one gradient. Only here is it several.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.parameter_servers import ShardedVariable
from .updates import beside, on_parameter_servers, shards_of

_ELEMENTWISE = frozenset(
    getattr(keras.optimizers, name)
    for name in ["SGD", "Adam", "AdamW", "Adamax", "Nadam", "RMSprop", "Adagrad", "Adadelta", "Ftrl", "Lion"]
    if hasattr(keras.optimizers, name)
)


def lookup(variable: keras.Variable, indices: Any) -> tf.Tensor | None:
    """Rows of a variable on parameter servers, gathered where they are: only those rows travel.

    Args:
        variable: shape `[rows, ...]`.
        indices: integer tensor of any shape; negative ones count from the end.

    Returns:
        `[*indices.shape, ...]`, or None where `variable` is not such a variable.
    """
    value = variable._value
    if not on_parameter_servers() or (tf.executing_eagerly() and shards_of(variable) is None):
        return None
    shards = shards_of(variable) or [value]
    indices = tf.convert_to_tensor(indices)
    if indices.dtype.is_floating or indices.dtype == tf.bool:
        indices = tf.cast(indices, tf.int32)
    indices = tf.where(indices < 0, indices + tf.cast(variable.shape[0], indices.dtype), indices)
    if len(shards) == 1:
        with beside(shards[0]):
            return tf.identity(shards[0].sparse_read(indices))
    return tf.nn.embedding_lookup(list(shards), indices)


def gradient(
    tape: tf.GradientTape, target: Any, variables: Sequence[Any], output_gradients: Any = None
) -> list[Any]:
    """`tape.gradient(target, variables)`, with one gradient for each variable also where it is split.

    Returns:
        One gradient for each variable: a tensor, `tf.IndexedSlices` with rows of the whole variable, or None.
    """
    parts = [shards_of(variable) for variable in variables]
    if not any(parts):
        return tape.gradient(target, variables, output_gradients=output_gradients)
    sources = [[variable] if part is None else list(part) for variable, part in zip(variables, parts)]
    gradients: Any = tape.gradient(target, sources, output_gradients=output_gradients)
    return [own[0] if part is None else _joined(own, part) for own, part in zip(gradients, parts)]


def _rows(shard: tf.Variable) -> int:
    return int(shard.shape.as_list()[0] or 0)


def _joined(gradients: Sequence[Any], shards: Sequence[tf.Variable]) -> Any:
    """The gradients of the shards as one of the whole variable."""
    if all(g is None for g in gradients):
        return None
    rows = [_rows(shard) for shard in shards]
    if all(g is None or isinstance(g, tf.IndexedSlices) for g in gradients):
        first, values, indices = 0, [], []
        for part, count in zip(gradients, rows):
            if part is not None:
                values.append(part.values)
                indices.append(tf.cast(part.indices, tf.int64) + first)
            first += count
        shape = tf.constant([sum(rows), *shards[0].shape.as_list()[1:]], tf.int64)  # pyright: ignore[reportArgumentType]
        return tf.IndexedSlices(tf.concat(values, 0), tf.concat(indices, 0), shape)
    dense = [
        tf.zeros(shard.shape, shard.dtype) if g is None else tf.convert_to_tensor(g)
        for g, shard in zip(gradients, shards)
    ]
    return tf.concat(dense, 0)


def updates_of(optimizer: Any, gradient: Any, variable: Any, copy: Any) -> Iterator[tuple[Any, Any]]:
    """What `update_step` is called with: (gradient, variable) once, or once for each shard, on its server.

    A rule that treats each number by itself is run on each shard with its part of the slots. Any other sees the whole.

    Args:
        optimizer: built.
        gradient: of the whole variable.
        variable: as in the optimizer.
        copy: its local copy.
    """
    shards = shards_of(copy)
    if shards is None or not is_elementwise(optimizer):
        with beside(copy):
            yield gradient, copy
        return
    first = 0
    for index, shard in enumerate(shards):
        rows = _rows(shard)
        with beside(shard), _slots_of_shard(optimizer, index):
            yield _rows_of(gradient, first, rows), shard
        first += rows


def is_elementwise(optimizer: Any) -> bool:
    """Whether the optimizer's update rule is one of Keras' that treat each number by itself."""
    rule = type(optimizer).update_step
    return any(rule is cls.update_step for cls in _ELEMENTWISE)


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
    whole = [(slot, slot._value) for slot in optimizer.variables if len(shards_of(slot) or ()) > index]
    try:
        for slot, value in whole:
            slot._value = value.variables[index]
        yield
    finally:
        for slot, value in whole:
            slot._value = value


def register_shards(optimizer: Any, variables: Sequence[Any]) -> None:
    """Lets the optimizer find the slots of a variable by each of its shards. Context: host, after `build`."""
    for index, variable in enumerate(variables):
        for shard in shards_of(variable) or ():
            optimizer._trainable_variables_indices[optimizer._var_key(shard)] = index


@contextlib.contextmanager
def slots_beside(variable: Any) -> Iterator[None]:
    """A variable that is created here lives on the server of `variable`, split as it is."""
    if not on_parameter_servers():
        yield
        return
    value = variable._value if isinstance(variable, keras.Variable) else variable
    shards = shards_of(value)
    strategy = tf.distribute.get_strategy()
    if shards is None:
        if not strategy.extended.variable_created_in_scope(value):
            yield
            return
        with strategy.extended.colocate_vars_with(value):
            yield
        return

    def create(next_creator: Any, **kwargs: Any) -> Any:
        initial: Any = kwargs["initial_value"]
        made: Any = initial() if callable(initial) else initial
        initial = tf.convert_to_tensor(made, kwargs.get("dtype"))
        if initial.shape != value.shape:
            return next_creator(**kwargs)
        sizes = [_rows(shard) for shard in shards]
        parts = []
        for index, (shard, part) in enumerate(zip(shards, tf.split(initial, sizes))):
            own = {"initial_value": part, "shape": part.shape, "colocate_with": shard}
            parts.append(next_creator(**{**kwargs, **own, "name": f"{kwargs.get('name')}/part_{index}"}))
        return ShardedVariable(parts)

    with tf.variable_creator_scope(create):
        yield
