"""Variables that are split by rows over parameter servers: created, looked up and differentiated part by part.

To what calls these functions such a variable is one variable with one gradient.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.parameter_servers import ShardedVariable
from ...compat.variables import raw_value
from .updates import beside, on_parameter_servers, shards_of


def lookup(variable: keras.Variable, indices: Any) -> tf.Tensor | None:
    """Rows of a variable on parameter servers, gathered where they are: only those rows travel.

    Args:
        variable: shape `[rows, ...]`.
        indices: integer tensor of any shape; negative ones count from the end.

    Returns:
        `[*indices.shape, ...]`, or None where `variable` is not such a variable.
    """
    value = raw_value(variable)
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
    tape: tf.GradientTape,
    target: Any,
    variables: Sequence[Any],
    output_gradients: Any = None,
    unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
) -> list[Any]:
    """`tape.gradient(target, variables)`, with one gradient for each variable also where it is split.

    Returns:
        One gradient for each variable: a tensor, `tf.IndexedSlices` with rows of the whole variable, or None.
    """
    parts = [shards_of(variable) for variable in variables]
    options = {"output_gradients": output_gradients, "unconnected_gradients": unconnected_gradients}
    if not any(parts):
        return tape.gradient(target, variables, **options)
    sources = [[variable] if part is None else list(part) for variable, part in zip(variables, parts)]
    gradients: Any = tape.gradient(target, sources, **options)
    return [own[0] if part is None else _joined(own, part) for own, part in zip(gradients, parts)]


def rows_of(shard: tf.Variable) -> int:
    """The rows of one shard."""
    return int(shard.shape.as_list()[0] or 0)


def _joined(gradients: Sequence[Any], shards: Sequence[tf.Variable]) -> Any:
    """The gradients of the shards as one of the whole variable."""
    if all(g is None for g in gradients):
        return None
    rows = [rows_of(shard) for shard in shards]
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


@contextlib.contextmanager
def created_beside(variable: Any) -> Iterator[None]:
    """A variable that is created here lives on the server of `variable`, split as it is."""
    if not on_parameter_servers():
        yield
        return
    value = raw_value(variable)
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
        sizes = [rows_of(shard) for shard in shards]
        parts = []
        for index, (shard, part) in enumerate(zip(shards, tf.split(initial, sizes))):
            own = {"initial_value": part, "shape": part.shape, "colocate_with": shard}
            parts.append(next_creator(**{**kwargs, **own, "name": f"{kwargs.get('name')}/part_{index}"}))
        return ShardedVariable(parts)

    with tf.variable_creator_scope(create):
        yield
