"""Variables with one shard on each replica, read and written like whole ones."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.variables import (
    VariableStandIn,
    let_stand_for,
    plain_variable,
    put_inside,
    raw_value,
)
from ...compat.tensorflow_private.valueless_variables import record_as_read, variable_without_value
from ..mesh import Layout, OnMesh
from ..replicas import copies_of, in_replica_context, local_copy, local_replica_index
from ..step_context import here
from ..workers.agreement import first_local_replica
from ..workers.peer_monitor import monitored_collective
from .collectives import (
    all_gather,
    as_shards,
    gathered_on_host,
    own_shard,
    scattered_from_first,
    shard_size,
    whole,
)
from .transient_weights import transient_weight

_numbers = itertools.count()


def seen_through(stand_in: Callable[[Any], Any] | None) -> contextlib.AbstractContextManager[None]:
    """This thread sees the variable `stand_in(value)` instead of each `ShardedValue`; None: the value itself."""
    return here.set_to(sees_sharded=stand_in)


class ShardedValue(VariableStandIn):
    """The value of a `keras.Variable` that is sharded, with one shard on each replica of a strategy.

    Reads and writes use the whole value: outside of replicas on all of them at once (over several workers every worker must
    read it), on a replica through an all-gather. Inside of `own_shards` it is this replica's shard, and `seen_through`
    replaces it with another stand-in.

    `shape` is that of the whole value, and `fill` the initial value of all elements. `shards` are the variables of the local
    replicas on their devices: flat, or with a `layout` the parts of the replicas of a mesh. Context: eager.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        shape: Sequence[int],
        dtype: Any,
        name: str,
        fill: float = 0.0,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(strategy, f"sharded_{next(_numbers)}_{name}")
        self.shape, self.dtype, self.name = tf.TensorShape(shape), tf.as_dtype(dtype), name
        self.distribute_strategy, self.layout = strategy, layout
        size = shard_size(int(np.prod(self.shape, dtype=np.int64)), strategy.num_replicas_in_sync)
        part = [size] if layout is None else layout.part_shape(self.shape.as_list())
        self.shards: list[tf.Variable] = []
        for device in strategy.extended.worker_devices:
            with tf.device(device):
                self.shards.append(plain_variable(tf.fill(part, tf.cast(fill, self.dtype))))
            let_stand_for(self.shards[-1], self)

    def own(self) -> tf.Variable:
        """This replica's shard. Context: replica."""
        return self.shards[local_replica_index()]

    def read_value(self) -> tf.Tensor:
        """The whole value, or its stand-in here."""
        if here.sees_sharded is not None:
            return tf.convert_to_tensor(here.sees_sharded(self))
        if self._is_on_replica():
            return all_gather([self.own().read_value()], [self.shape.as_list()])[0]
        shards = [tf.reshape(shard.read_value(), [-1]) for shard in self.shards]
        with monitored_collective():
            flat = gathered_on_host(self.distribute_strategy, shards)
        if self.layout is None:
            return whole(flat, self.shape.as_list())
        with tf.device("CPU:0"):
            return self.layout.whole(tf.unstack(tf.reshape(flat, [-1, *self.shards[0].shape])))

    def assign(self, value: Any) -> Any:
        """Writes the whole value, or its stand-in here: each replica writes its shard."""
        if here.sees_sharded is not None:
            return here.sees_sharded(self).assign(value)
        value = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        if self._is_on_replica():
            return self.own().assign(own_shard(value))
        first = first_local_replica(self.distribute_strategy)
        if self.layout is not None:
            for number, shard in enumerate(self.shards, first):
                shard.assign(self.layout.part(value, number))
            return self
        flat, size = np.ravel(value.numpy()), int(self.shards[0].shape[0] or 0)
        for number, shard in enumerate(self.shards, first):
            part = flat[number * size : (number + 1) * size]
            shard.assign(np.pad(part, (0, size - len(part))))
        return self

    def _is_on_replica(self) -> bool:
        on_replica = in_replica_context() and tf.distribute.has_strategy()
        if on_replica and self.layout is not None:
            raise ValueError(
                f"{self.name!r} is divided over a mesh, and was read or written in `strategy.run`: do that in a step of "
                "`fit`, `evaluate` or `predict`, in a function that `unisono.replica_step` wraps, or outside."
            )
        return on_replica

    def assign_add(self, value: Any) -> Any:
        """Adds to it."""
        if here.sees_sharded is not None:
            return here.sees_sharded(self).assign_add(value)
        return super().assign_add(value)

    def assign_sub(self, value: Any) -> Any:
        """Subtracts from it."""
        if here.sees_sharded is not None:
            return here.sees_sharded(self).assign_sub(value)
        return super().assign_sub(value)


class ShardedWeight(ShardedValue):
    """A sharded weight: all-gathered where a step reads it, for as long as the step uses it.

    Its gradient is that of the whole weight. Arguments and attributes as `ShardedValue`. Context: eager.
    """

    trainable = True
    _should_act_as_resource_variable = True

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        shape: Sequence[int],
        dtype: Any,
        name: str,
        layout: Layout | None = None,
    ) -> None:
        super().__init__(strategy, shape, dtype, name, layout=layout)
        self._known_to_tapes = variable_without_value(self.shape, self.dtype, name)

    @property
    def handle(self) -> Any:
        """The handle by which a `tf.GradientTape` knows it."""
        return self._known_to_tapes.handle

    def read_value(self) -> tf.Tensor:
        """The whole weight, or its stand-in here."""
        on_replica = in_replica_context() and tf.distribute.has_strategy()
        if here.sees_sharded is not None or self.layout is not None or not on_replica:
            value = super().read_value()
        else:
            value = transient_weight(self.own().read_value, self.shape.as_list())
        record_as_read(self._known_to_tapes, value)
        return value

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"The weight {self.name!r} is sharded, so the model cannot be exported: save it with "
            "`model.save(path)`, load it outside of the strategy's scope, and export the loaded model."
        )


class TensorInPlace(VariableStandIn):
    """A tensor that stands for the variable that an optimizer knows by `key`: an assigned value is its value from then on.

    Context: replica; assignments in a branch or loop of the graph are not allowed.
    """

    def __init__(self, key: Any, tensor: tf.Tensor, name: str = "") -> None:
        super().__init__(None, key)
        self.shape, self.dtype, self.name = tensor.shape, tensor.dtype, name
        self.tensor = tensor

    def read_value(self) -> tf.Tensor:
        """The tensor."""
        return self.tensor

    def assign(self, value: Any) -> Any:
        """Replaces it."""
        self.tensor = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self.tensor


def layout_of(variable: Any) -> Layout | None:
    """How a Keras variable is divided over a mesh; None where it is not."""
    return getattr(raw_value(variable), "layout", None)


def is_sharded(variable: Any) -> bool:
    """Whether the value of a Keras variable has one shard on each replica."""
    return isinstance(raw_value(variable), ShardedValue)


def own_copy(variable: Any) -> Any:
    """This replica's part of a variable: its shard, or its copy. Context: replica."""
    return raw_value(variable).own() if is_sharded(variable) else local_copy(variable)


def own_part(variable: Any) -> tf.Tensor:
    """This replica's shard of a trained weight, flat, whether the weight is sharded or not. Context: replica."""
    copy = own_copy(variable)
    return tf.convert_to_tensor(copy) if is_sharded(variable) else own_shard(copy)


own_shards = functools.partial(seen_through, ShardedValue.own)
"""This thread sees this replica's shards instead of sharded variables. Context: replica."""


@contextlib.contextmanager
def created_in_shards(
    strategy: Any, shape: Sequence[int], initializer: Any, layout: Layout | None = None
) -> Iterator[None]:
    """A variable of that shape, created here in eager mode, is a sharded one of `strategy`.

    The initial value of a constant initializer never has its full size in memory.
    """
    constant = keras.initializers.get(initializer)
    fill = getattr(constant, "value", 0.0)
    if type(constant) not in (keras.initializers.Zeros, keras.initializers.Constant) or np.ndim(fill):
        fill = None

    def create(next_creator: Any, **kwargs: Any) -> Any:
        name = kwargs.get("name") or "Variable"
        value = ShardedValue(strategy, shape, kwargs["dtype"], name, fill or 0.0, layout)
        if fill is None:
            initial = kwargs["initial_value"]
            value.assign(initial() if callable(initial) else initial)
        return value

    with tf.variable_creator_scope(create):
        yield


def shard_variable(variable: keras.Variable, strategy: Any, layout: Layout | None = None) -> None:
    """Replaces the TensorFlow variable inside a Keras variable by a sharded one, with its value and id. Context: eager."""
    whole_value = tf.convert_to_tensor(copies_of(raw_value(variable))[0])
    value = ShardedValue(strategy, list(variable.shape), variable.dtype, variable.name, layout=layout)
    value.assign(whole_value)
    put_inside(variable, value)


def is_shardable(variable: keras.Variable, shape: Sequence[Any]) -> bool:
    """Whether the level "weights" shards a variable: trained, of rank two and more.

    A vector has a small part of a layer's bytes, and gathering it would take as long.
    """
    return bool(variable.trainable) and tf.as_dtype(variable.dtype).is_floating and len(shape) >= 2


def sharded_weight(strategy: Any, variable: keras.Variable, value: Any, flat: bool) -> ShardedWeight | None:
    """The value of a Keras variable that is being created under a strategy, of which it is divided; None: it is whole.

    It has the layout of the strategy, or is `flat` if it is shardable.

    `value` is an array, a tensor, or a function that makes one of the variable's shape. Over several workers the
    chief's counts. Context: eager, on every worker.
    """
    shape = tuple(variable.shape) if callable(value) else tuple(np.shape(value))
    if isinstance(value, tf.Variable) or not tf.executing_eagerly():
        return None
    replicas = strategy.num_replicas_in_sync
    layout = strategy.layout_of(variable.path, shape) if isinstance(strategy, OnMesh) else None
    if layout is None and not (flat and is_shardable(variable, shape)):
        return None
    weight = ShardedWeight(strategy, shape, variable.dtype, variable.name, layout)
    with (
        tf.device("CPU:0" if layout is not None else None),
        monitored_collective(),
    ):  # it may be too large for a device
        first: Any = tf.cast(value() if callable(value) else value, weight.dtype)
        if layout is None:
            rows = as_shards(first, replicas)
        else:
            rows = tf.stack([tf.reshape(layout.part(first, replica), [-1]) for replica in range(replicas)])
        for shard, part in zip(weight.shards, scattered_from_first(strategy, rows)):
            shard.assign(tf.reshape(part, shard.shape))
    return weight
