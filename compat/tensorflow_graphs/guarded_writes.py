"""Conditional writes to variables without `tf.cond`: a write changes nothing where a bool tensor is false."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..shared_change import share_attribute
from ..thread_context import tracing
from ..upstream_places import BaseResourceVariable, ResourceVariable


@contextlib.contextmanager
def writes_only_where(condition: tf.Tensor) -> Iterator[None]:
    """In the block writes change nothing where `condition` is false; a GPU selects values and waits for no branch."""
    outer = tracing.write_condition
    every = condition if outer is None else tf.logical_and(outer, condition)
    with contextlib.ExitStack() as stack:
        for owner, name, write in _WRITERS:
            stack.enter_context(share_attribute(owner, name, functools.partial(_guard_write, write)))
        stack.enter_context(tracing.set_to(write_condition=every))
        yield


def writes_only_where_here() -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Apply the guards of this thread to the writes of another thread."""
    condition = tracing.write_condition
    return contextlib.nullcontext if condition is None else lambda: writes_only_where(condition)


def _guard_write(write: Callable[..., Any], original: Any) -> Any:
    """Return the method `original` of variables; under a guard it calls `write(original, condition, variable, ...)`."""

    @functools.wraps(original)
    def guarded(variable: Any, *args: Any, **kwargs: Any) -> Any:
        condition = tracing.write_condition
        if condition is None:
            return original(variable, *args, **kwargs)
        with tracing.set_to(write_condition=None):
            return write(original, condition, variable, *args, **kwargs)

    return guarded


def _assign(original: Any, condition: tf.Tensor, variable: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
    value = tf.where(condition, tf.convert_to_tensor(value, variable.dtype), variable)
    return original(variable, value, *args, **kwargs)


def _assign_sum(
    original: Any, condition: tf.Tensor, variable: Any, delta: Any, *args: Any, **kwargs: Any
) -> Any:
    delta, old = tf.convert_to_tensor(delta, variable.dtype), tf.convert_to_tensor(variable)
    new = old - delta if original.__name__ == "assign_sub" else old + delta
    return variable.assign(tf.where(condition, new, old), *args, **kwargs)


def _write_slices(
    original: Any, condition: tf.Tensor, variable: Any, slices: Any, *args: Any, **kwargs: Any
) -> Any:
    old = variable.sparse_read(slices.indices)
    with tf.control_dependencies([old]):
        original(variable, slices, *args, **kwargs)
    rows = tf.where(condition, variable.sparse_read(slices.indices), old)
    return variable.scatter_update(tf.IndexedSlices(rows, slices.indices))


def _write_anywhere(original: Any, condition: tf.Tensor, variable: Any, *args: Any, **kwargs: Any) -> Any:
    old = tf.identity(variable)
    with tf.control_dependencies([old]):
        original(variable, *args, **kwargs)
    return variable.assign(tf.where(condition, variable, old))


_OF_SLICES = "scatter_add scatter_sub scatter_max scatter_min scatter_mul scatter_div scatter_update"
_OF_PLACES = """
batch_scatter_update scatter_nd_add scatter_nd_sub scatter_nd_max scatter_nd_min scatter_nd_update _strided_slice_assign
"""
_WRITES = {
    **{"assign": _assign, "assign_add": _assign_sum, "assign_sub": _assign_sum},
    **dict.fromkeys(_OF_SLICES.split(), _write_slices),
    **dict.fromkeys(_OF_PLACES.split(), _write_anywhere),
}
_WRITERS = [
    (owner, name, write)
    for owner in (BaseResourceVariable, ResourceVariable)
    for name, write in _WRITES.items()
    if name in vars(owner)
]
