"""Variables that are sharded over parameter servers by their first axis, used like whole ones.

In every `run` of the strategy `keras.ops.take` and `tape.gradient` do the same.
"""

import contextlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.variables import autocast, raw_value
from ...compat.patches import provide, replace_functions, wrap
from ...compat.register import SERVERS
from ...compat.upstream_places import ShardedVariable
from ..hardware.devices import computes_on_gpu
from ..step_context import current_step
from .updates import FIRST_SERVER, colocate_with, on_parameter_servers, shards_of


class _DescribedAsWhole(ShardedVariable):
    """Has the name and attributes of a whole variable, and is saved as one: TensorFlow's class leaves this to the parts."""

    name = property(lambda self: self.variables[0].name.replace("/part_0:", ":"))
    trainable = property(lambda self: self.variables[0].trainable)
    aggregation = property(lambda self: self.variables[0].aggregation)
    synchronization = property(lambda self: self.variables[0].synchronization)
    device = property(lambda self: self.variables[0].device)
    constraint = initializer = None
    ref, get_shape = tf.Variable.ref, tf.Variable.get_shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(tf.convert_to_tensor(self).numpy(), dtype)

    def _serialize_to_tensors(self) -> dict[str, Any]:
        return {"VARIABLE_VALUE": tf.convert_to_tensor(self)}

    def _restore_from_tensors(self, restored_tensors: dict[str, Any]) -> Any:
        return self.assign(restored_tensors["VARIABLE_VALUE"])


def describe_as_whole(variable: Any) -> Any:
    """Let a variable that is sharded by its first axis have what a whole one has, and be saved as one; return it."""
    if type(variable) is ShardedVariable:
        variable.__class__ = _DescribedAsWhole
    return variable


def lookup(variable: keras.Variable, indices: Any) -> tf.Tensor | None:
    """Return entries `[*indices.shape, ...]` of a table on parameter servers, gathered there, so that only those are sent.

    `indices` are integers of any shape, ragged or sparse ones too (where a sparse array has no value, as in Keras, of entry
    0); negative ones count from the end. None if `variable` is not sharded so.
    """
    value = raw_value(variable)
    if not on_parameter_servers() or (tf.executing_eagerly() and shards_of(variable) is None):
        return None
    if isinstance(indices, tf.RaggedTensor):
        return indices.with_flat_values(lookup(variable, indices.flat_values))
    shards = shards_of(variable) or [value]
    sparse = isinstance(indices, tf.SparseTensor)
    indices = tf.sparse.to_dense(indices, validate_indices=False) if sparse else tf.convert_to_tensor(indices)
    if indices.dtype.is_floating or indices.dtype == tf.bool:
        indices = tf.cast(indices, tf.int32)
    indices = tf.where(indices < 0, indices + tf.cast(variable.shape[0], indices.dtype), indices)
    if len(shards) == 1:
        with colocate_with(shards[0]):
            return tf.identity(shards[0].sparse_read(indices))
    return tf.nn.embedding_lookup(list(shards), indices)


def gradient(
    tape: tf.GradientTape, target: Any, variables: Sequence[Any], *args: Any, **kwargs: Any
) -> list[Any]:
    """Call `tape.gradient` with these arguments; return one gradient for each variable, sharded or not.

    Each is a tensor, `tf.IndexedSlices` of the whole variable, or None.
    """
    parts = [shards_of(variable) for variable in variables]
    if not any(parts):
        return tape.gradient(target, variables, *args, **kwargs)
    sources = [[variable] if part is None else list(part) for variable, part in zip(variables, parts)]
    gradients: Any = tape.gradient(target, sources, *args, **kwargs)
    return [
        own[0] if part is None else _concatenate_gradients(own, part) for own, part in zip(gradients, parts)
    ]


def rows_of(shard: tf.Variable) -> int:
    """Return the length of the first axis of one shard."""
    return int(shard.shape.as_list()[0] or 0)


def _concatenate_gradients(gradients: Sequence[Any], shards: Sequence[tf.Variable]) -> Any:
    """Return the gradients of the shards, combined to one of the whole variable."""
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


def colocate_creation(variable: Any) -> contextlib.AbstractContextManager[Any]:
    """Create variables inside on the server of `variable`, and sharded like it."""
    if not on_parameter_servers():
        return contextlib.nullcontext()
    value = raw_value(variable)
    shards = shards_of(value)
    if shards is None:
        extended = tf.distribute.get_strategy().extended
        known = extended.variable_created_in_scope(value)
        return extended.colocate_vars_with(value) if known else contextlib.nullcontext()

    def create(initial: tf.Tensor, next_creator: Any, kwargs: Any) -> Any:
        parts = []
        for index, (shard, part) in enumerate(zip(shards, tf.split(initial, list(map(rows_of, shards))))):
            own = {"initial_value": part, "shape": part.shape, "colocate_with": shard}
            parts.append(next_creator(**{**kwargs, **own, "name": f"{kwargs.get('name')}/part_{index}"}))
        return describe_as_whole(ShardedVariable(parts))

    return replace_creation(value.shape, create)


def on_first_server(shape: Any) -> contextlib.AbstractContextManager[Any]:
    """Create variables of this shape, inside, on the first server and whole, also in the scope of the strategy."""
    place = types.SimpleNamespace(device=FIRST_SERVER, name="")  # all that TensorFlow reads of a variable
    return replace_creation(
        shape,
        lambda initial, make, kwargs: make(**{**kwargs, "initial_value": initial, "colocate_with": place}),
    )


def replace_creation(
    shape: Any, create: Callable[[tf.Tensor, Any, dict[str, Any]], Any]
) -> contextlib.AbstractContextManager[Any]:
    """Create variables of this shape, inside, by `create(initial value, next creator, its arguments)`."""

    def creator(next_creator: Any, **kwargs: Any) -> Any:
        initial: Any = kwargs["initial_value"]
        value = tf.convert_to_tensor(initial() if callable(initial) else initial, kwargs.get("dtype"))
        return create(value, next_creator, kwargs) if value.shape == shape else next_creator(**kwargs)

    return tf.variable_creator_scope(creator)


def _take(original: Any) -> Any:
    def take(x: Any, indices: Any, axis: Any = None) -> Any:
        if isinstance(x, keras.Variable) and axis == 0:
            rows = None if raw_value(x) is None else lookup(x, indices)
            if rows is not None:
                return autocast(x, rows)
        return original(x, _for_gpu(indices), axis)

    return take


def _for_gpu(indices: Any) -> Any:
    """Return indices in 64 bits instead of 32 in a step on a GPU: TensorFlow adds and reshapes 32-bit ones on the host."""
    step = current_step()
    if step is None or step.in_xla or tf.executing_eagerly() or not computes_on_gpu():
        return indices
    narrow = isinstance(indices, tf.Tensor | tf.RaggedTensor) and indices.dtype == tf.int32
    return tf.cast(indices, tf.int64) if narrow and indices.shape.rank else indices


def _gradient(original: Any) -> Any:
    def of_whole_variables(self: Any, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
        variables = tf.nest.flatten(sources)
        if not any(map(shards_of, variables)):
            return original(self, target, sources, *args, **kwargs)
        return tf.nest.pack_sequence_as(sources, gradient(self, target, variables, *args, **kwargs))

    return of_whole_variables


def _run(original: Any, *args: Any, **kwargs: Any) -> Any:
    with replace_functions(SERVERS):
        return original(*args, **kwargs)


def use_like_whole_ones() -> None:
    """Let sharded variables on parameter servers be used and differentiated like whole ones from now on.

    A model or an optimizer of ours calls it when it is created under such a strategy.
    """
    if on_parameter_servers():
        wrap("run", _run)


provide("numpy.take", _take)
provide("GradientTape.gradient", _gradient)
