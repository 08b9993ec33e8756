"""Variables with one shard on each replica, read and written like whole ones."""

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from ...compat.keras_private.variables import (
    let_stand_for,
    name_scope_of,
    plain_variable,
    put_inside,
    raw_value,
)
from ...compat.tensorflow_private.valueless_variables import record_as_read, variable_without_value
from ...compat.wrong_use import WrongUse
from ..mesh import FLAT, Layout, OnMesh, flat_layout, from_rows, mesh_of
from ..replicas import copies_of, in_replica_context, local_copy, local_replica_index
from ..step_context import here
from ..workers.agreement import first_local_replica
from ..workers.peer_monitor import monitored_collective
from .collectives import all_gather, gather_on_host, scatter_from_first
from .stand_in import VariableStandIn

_numbers = itertools.count()


def see_through(stand_in: Callable[[Any], Any] | None) -> contextlib.AbstractContextManager[None]:
    """Let this thread see the variable `stand_in(value)` instead of each `ShardedValue`; None: the value itself."""
    return here.set_to(sees_sharded=stand_in)


class ShardedValue(VariableStandIn):
    """The value of a `keras.Variable` that is sharded, with one shard on each replica of a strategy.

    Reads and writes use the whole value: outside replicas on all of them at once (over several workers every worker must
    read it), on a replica through an all-gather. Inside `own_shards` it is this replica's shard, and `see_through`
    replaces it with another stand-in.

    `shape` is that of the whole value, and `fill` the initial value of all elements. `shards` are the variables of the local
    replicas on their devices, with the parts that the `layout` says, by default flat ones. `traced` stands for all of them
    in the trace of a step. Context: eager.
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
        self.shape, self.dtype = tf.TensorShape(shape), tf.as_dtype(dtype)
        self.distribute_strategy = strategy
        self.layout = layout or flat_layout(mesh_of(strategy))
        part = self.layout.part_shape(self.shape.as_list())
        self.shards: list[tf.Variable] = []
        for device in strategy.extended.worker_devices:
            with tf.device(device):
                self.shards.append(plain_variable(tf.fill(part, tf.cast(fill, self.dtype))))
            let_stand_for(self.shards[-1], self)
        self.traced = variable_without_value(self.shape, self.dtype, name)
        let_stand_for(self.traced.handle, self)
        self.name, self.device = self.traced.name, self.shards[0].device  # the name with its scope

    @property
    def is_flat(self) -> bool:
        """Whether the shards are flat parts of the whole."""
        return self.layout.is_flat and not self.layout.mesh.divides_weights

    @property
    def handle(self) -> Any:
        """The handle by which a `tf.GradientTape` knows it."""
        return self.traced.handle

    def own(self) -> tf.Variable:
        """Return this replica's shard. Context: replica."""
        return self.shards[local_replica_index()]

    def read_value(self) -> tf.Tensor:
        """Return the whole value, or its stand-in here."""
        if here.sees_sharded is not None:
            return tf.convert_to_tensor(here.sees_sharded(self))
        if self._is_on_replica():
            (rows,) = all_gather([self.own().read_value()])
            return from_rows(rows, FLAT, len(self.layout.mesh.replicas), self.shape.as_list())
        rows = [tf.reshape(shard.read_value(), [-1]) for shard in self.shards]
        with monitored_collective():
            rows = gather_on_host(self.distribute_strategy, rows)
        with tf.device("CPU:0"):
            parts = [tf.reshape(row, self.shards[0].shape) for row in rows]
            return self.layout.whole(parts, self.shape.as_list())

    def assign(self, value: Any, *options: Any, **named: Any) -> Any:
        """Write the whole value, or its stand-in here: each replica writes its shard."""
        if here.sees_sharded is not None:
            return here.sees_sharded(self).assign(value)
        value = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        if self._is_on_replica():
            return self.own().assign(self.layout.own_part(value))
        with tf.device("CPU:0"):
            value = tf.identity(value)
            for number, shard in enumerate(self.shards, first_local_replica(self.distribute_strategy)):
                shard.assign(self.layout.part(value, number))
        return self

    def _is_on_replica(self) -> bool:
        on_replica = in_replica_context() and tf.distribute.has_strategy()
        if on_replica and not self.is_flat:
            raise WrongUse(
                f"{self.name!r} is divided over a mesh, and was read or written in `strategy.run`: do that in a step of "
                "`fit`, `evaluate` or `predict` of a `unisono.Model` (`unisono.adopt(model)` converts a plain Keras model), "
                "in a function that `unisono.replica_step` wraps, or outside."
            )
        return on_replica

    def assign_add(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Add to it."""
        if here.sees_sharded is not None:
            return here.sees_sharded(self).assign_add(delta)
        return super().assign_add(delta)

    def assign_sub(self, delta: Any, *options: Any, **named: Any) -> Any:
        """Subtract from it."""
        if here.sees_sharded is not None:
            return here.sees_sharded(self).assign_sub(delta)
        return super().assign_sub(delta)


class ShardedWeight(ShardedValue):
    """A sharded weight: all-gathered where a step reads it, for as long as the step uses it.

    Its gradient is that of the whole weight. Arguments and attributes as `ShardedValue`. Context: eager.
    """

    trainable = True
    _should_act_as_resource_variable = True

    def read_value(self) -> tf.Tensor:
        """Return the whole weight, or its stand-in here."""
        value = super().read_value()
        record_as_read(self.traced, value)
        return value

    def _export_to_saved_model_graph(self, *args: Any, **kwargs: Any) -> Any:
        raise WrongUse(
            f"The weight {self.name!r} is sharded, so the model cannot be exported: save it with "
            "`model.save(path)`, load it outside the strategy's scope, and export the loaded model."
        )


class TensorInPlace(VariableStandIn):
    """A tensor that stands for the variable that an optimizer knows by `key`: an assigned value is its value from then on.

    Context: replica; assignments in a branch or loop of the graph are not allowed.
    """

    def __init__(self, key: Any, tensor: tf.Tensor, variable: Any) -> None:
        super().__init__(None, key)
        self.shape, self.dtype, self.tensor = tensor.shape, tensor.dtype, tensor
        self.name, self.trainable = variable.name, variable.trainable

    def read_value(self) -> tf.Tensor:
        """Return the tensor."""
        return self.tensor

    def assign(self, value: Any, *options: Any, **named: Any) -> Any:
        """Replace it."""
        self.tensor = tf.ensure_shape(tf.cast(value, self.dtype), self.shape)
        return self.tensor


def layout_of(variable: Any) -> Layout | None:
    """Return how a Keras variable is divided over a mesh; None where it is whole or has flat shards."""
    value = raw_value(variable)
    return value.layout if isinstance(value, ShardedValue) and not value.is_flat else None


def is_sharded(variable: Any) -> bool:
    """Return whether the value of a Keras variable has one shard on each replica."""
    return isinstance(raw_value(variable), ShardedValue)


def own_copy(variable: Any) -> Any:
    """Return this replica's part of a variable: its shard, or its copy; outside of the scope the whole. Context: replica."""
    return (
        raw_value(variable).own()
        if is_sharded(variable) and tf.distribute.has_strategy()
        else local_copy(variable)
    )


own_shards = functools.partial(see_through, ShardedValue.own)
"""This thread sees this replica's shards instead of sharded variables. Context: replica."""


@contextlib.contextmanager
def create_in_shards(
    strategy: Any, shape: Sequence[int], initializer: Any, layout: Layout | None = None
) -> Iterator[None]:
    """Make a variable of that shape, created here in eager mode, a sharded one of `strategy`.

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
    """Replace the TensorFlow variable inside a Keras variable by a sharded one, with its value and id. Context: eager."""
    whole_value = tf.convert_to_tensor(copies_of(raw_value(variable))[0])
    with name_scope_of(raw_value(variable)):
        value = ShardedValue(strategy, list(variable.shape), variable.dtype, variable.name, layout=layout)
    value.assign(whole_value)
    put_inside(variable, value)


def is_shardable(variable: keras.Variable, shape: Sequence[Any]) -> bool:
    """Return whether the level "weights" shards a variable: trained, of rank two and more.

    A vector has a small part of a layer's bytes, and gathering it would take as long.
    """
    return bool(variable.trainable) and tf.as_dtype(variable.dtype).is_floating and len(shape) >= 2


def make_sharded_weight(
    strategy: Any, variable: keras.Variable, value: Any, flat: bool
) -> ShardedWeight | None:
    """Return the value of a Keras variable that is created under a strategy that divides it; None: it is whole.

    It has the layout of the strategy, or is `flat` if it is shardable.

    `value` is an array, a tensor, or a function that makes one of the variable's shape. Over several workers the
    chief's counts. Context: eager, on every worker.
    """
    shape = tuple(variable.shape) if callable(value) else tuple(np.shape(value))
    if isinstance(value, tf.Variable) or not tf.executing_eagerly():
        return None
    layout = strategy.layout_of(variable.path, shape) if isinstance(strategy, OnMesh) else None
    if flat and is_shardable(variable, shape):
        layout = flat_layout(mesh_of(strategy), layout)
    if layout is None:
        return None
    weight = ShardedWeight(strategy, shape, variable.dtype, variable.name, layout=layout)
    weight.trainable = bool(variable.trainable)
    with (
        tf.device("CPU:0" if isinstance(strategy, OnMesh) else None),
        monitored_collective(),
    ):  # it may be too large for a device
        first: Any = tf.cast(value() if callable(value) else value, weight.dtype)
        for shard, row in zip(weight.shards, scatter_from_first(strategy, first, weight.layout)):
            shard.assign(tf.reshape(row, shard.shape))
    return weight
