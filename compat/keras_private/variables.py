"""Keras variables, the TensorFlow variables in them, and the scopes that collect writes to them."""

from __future__ import annotations

import contextlib
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from ..shared_change import share_attribute, share_attributes
from ..side_table import SideTable
from ..upstream_places import BaseResourceVariable, ResourceVariable, global_state

_SCOPE = "stateless_scope"
TensorType = tf.__internal__.types.Tensor  # what `tf.is_tensor` asks for


def raw_value(variable: Any) -> Any:
    """Return the TensorFlow variable in a Keras variable, even if a scope records another value; else `variable`."""
    return getattr(variable, "_value", variable)


def find_stored_dtype(variable: Any) -> Any:
    """Return the dtype of a Keras variable in memory; reads in a layer with a mixed policy have another dtype."""
    return getattr(raw_value(variable), "dtype", None) or variable.dtype


def bytes_of(*variables: Any) -> int:
    """Return the bytes that a replica has of variables, which can be divided."""
    parts = [getattr(raw_value(each), "shards", [each])[0] for each in variables]
    return sum(math.prod(each.shape) * tf.as_dtype(find_stored_dtype(each)).size for each in parts)


def is_plain(variable: Any) -> bool:
    """Return whether it is a TensorFlow variable with one copy, on one device."""
    return type(variable) is ResourceVariable


def autocast(variable: keras.Variable, value: Any) -> Any:
    """Return `value` in the dtype that a read of `variable` has here."""
    return variable._maybe_autocast(value)


def stateless_scope() -> keras.StatelessScope | None:
    """Return the `keras.StatelessScope` in which this thread collects writes, or None."""
    return global_state.get_global_attribute(_SCOPE)


class _WrittenAtOnce(keras.StatelessScope):
    """Calls `write(variable, value)` where Keras would assign a value to a variable."""

    def __init__(self, write: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self._write = write

    def add_update(self, update: tuple[Any, Any]) -> None:
        self._write(*update)


def collects_writes() -> bool:
    """Return whether writes to Keras variables are collected in this thread, to be made later."""
    return not isinstance(stateless_scope(), _WrittenAtOnce | None)


@contextlib.contextmanager
def direct_writes(write: Callable[[Any, Any], Any] | None = None) -> Iterator[None]:
    """Make writes to Keras variables at once, by `write(variable, value)` or else `assign`, whatever the scope."""
    scope = stateless_scope()
    global_state.set_global_attribute(_SCOPE, None if write is None else _WrittenAtOnce(write))
    try:
        yield
    finally:
        global_state.set_global_attribute(_SCOPE, scope)


class _Scalar(keras.Variable):
    """A Keras variable that is a Python number by `int()` and `float()` also where a strategy holds copies of it."""

    def __int__(self) -> int:
        return int(self.numpy())

    def __float__(self) -> float:
        return float(self.numpy())


def as_number(variable: Any) -> Any:
    """Return the same variable, for which `int()` and `float()` work under a strategy if it is a scalar."""
    if type(variable) is keras.Variable and variable.ndim == 0:
        variable.__class__ = _Scalar
    return variable


def name_scope_of(variable: Any) -> Any:
    """Return the name scope of a TensorFlow variable, in which another with its short name gets the same full name."""
    return tf.name_scope(
        "".join(variable.name.rpartition("/")[:2])
    )  # absolute, as it ends in a slash or is empty


def make_again(variable: keras.Variable) -> None:
    """Recreate the TensorFlow variable in `variable` under the current strategy; compiled functions read the old one."""
    old, value = variable._value, variable.numpy()
    _mark_left(old)

    def create(next_creator: Callable[..., Any], **arguments: Any) -> Any:
        copy = next_creator(**arguments)
        if not isinstance(old, BaseResourceVariable) or old.device != copy.device:
            return copy
        old.assign(copy)
        _mark_left(old, False)
        return old

    variable._value = None
    graph: Any = tf.compat.v1.get_default_graph()
    with graph._variable_creator_scope(create, priority=0), name_scope_of(old):  # the innermost one
        variable._initialize(tf.constant(value, variable.dtype))
    made: Any = variable._value
    getattr(made, "_primary", made)._unique_id = old._unique_id
    if isinstance(made, tf.distribute.DistributedValues) and made.values[0] is old:
        # TensorFlow notes it on a variable that a function has created, and graphs capture handles.
        old.handle._distributed_container = weakref.ref(made)
    if "trainable" in vars(made):  # as in what stands for a variable
        made.trainable = old.trainable


def move_to_device(variable: Any, device: str) -> None:
    """Recreate the TensorFlow variable in a Keras variable on `device`, with its value and the id that optimizers know."""
    old = variable._value
    if isinstance(old, tf.Variable) and old.device == device:
        return
    with tf.init_scope(), tf.device(device), name_scope_of(old):
        variable._value = tf.Variable(
            old,
            dtype=old.dtype,
            trainable=old.trainable,
            name=variable.name,
            aggregation=old.aggregation,
            synchronization=old.synchronization,
        )
    variable._value._unique_id = old._unique_id
    _mark_left(old)


_left = SideTable(lambda: [False]).of  # of a handle: whether its Keras variable has another variable now


def _mark_left(value: Any, left: bool = True) -> None:
    if isinstance(value, BaseResourceVariable):
        _left(value.handle)[0] = left


def was_left(captured: Any) -> bool:
    """Return whether a function captured a TensorFlow variable that has since been replaced in its Keras variable."""
    return _left(captured)[0]


@contextlib.contextmanager
def replace_value(variable: keras.Variable, value: Any) -> Iterator[None]:
    """While this is entered the Keras variable stands for another TensorFlow variable."""
    own = variable._value
    variable._value = value
    try:
        yield
    finally:
        variable._value = own


def with_shapes(variables: Sequence[tuple[keras.Variable, Any]]) -> contextlib.AbstractContextManager[None]:
    """Let each Keras variable report the paired shape inside, which Keras' functions read."""
    return share_attributes("_shape", [(v, lambda _, shape=shape: tuple(shape)) for v, shape in variables])


def use_name_of(copy: Any, variable: Any) -> contextlib.AbstractContextManager[None]:
    """Let user code inside read the name of a variable from its copy on any replica."""
    name = raw_value(variable).name
    if not isinstance(copy, BaseResourceVariable) or copy.name == name:
        return contextlib.nullcontext()
    return share_attribute(copy, "_handle_name", lambda _: name)


def put_inside(variable: keras.Variable, value: Any, keeps_id: bool = True) -> None:
    """Make `value` the variable inside a Keras variable, with the id of the previous one, by which optimizers know it."""
    old = getattr(variable, "_value", None)
    if old is not None and keeps_id:
        value._unique_id = getattr(old, "_primary", old)._unique_id
    variable._value = value


def find_increment(variable: Any, value: tf.Tensor) -> tf.Tensor:
    """Return the number that, added to a variable, gives `value`: that of the graph, if it is `variable + number` there."""
    op = getattr(value, "op", None)  # None of an eager tensor
    while op is not None and op.type == "Identity":
        op = op.inputs[0].op
    if op is not None and op.type == "AddV2" and op.inputs[0].op.type == "ReadVariableOp":
        return op.inputs[1]
    return value - tf.cast(variable, value.dtype)


def plain_variable(value: Any, shape: Any = None) -> Any:
    """Return a variable of this process alone, in any strategy's scope: it holds no part of a model."""
    return ResourceVariable(value, trainable=False, shape=shape)


def let_stand_for(part: Any, whole: Any) -> None:
    """Let optimizers know a part of a variable by the id of the whole one, like a copy of a distributed variable."""
    part._distributed_container = weakref.ref(whole)


def is_read_together(value: Any) -> bool:
    """Return whether each replica writes its own copy of a variable, and reads aggregate the copies."""
    return getattr(value, "synchronization", None) == tf.VariableSynchronization.ON_READ


def sums_on_read(value: Any) -> bool:
    """Return whether the copies of a distributed variable are parts of a sum."""
    return is_read_together(value) and value.aggregation == tf.VariableAggregation.SUM
