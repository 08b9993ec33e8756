"""Updates of variables on parameter servers: one step at a time, on the server of each variable."""

import contextlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.variables import raw_value
from ...compat.tensorflow_graphs.graphs import effects
from ...compat.upstream_places import ShardedVariable

_locks: weakref.WeakKeyDictionary[Any, tf.Tensor] = weakref.WeakKeyDictionary()
FIRST_SERVER = "/job:ps/replica:0/task:0/device:CPU:0"
"""The server that holds the lock and does the small computations between reads and writes."""


def on_parameter_servers(strategy: Any = None) -> bool:
    """Return whether the variables of `strategy` (None: the current one) are on parameter servers."""
    strategy = tf.distribute.get_strategy() if strategy is None else strategy
    return isinstance(strategy, tf.distribute.experimental.ParameterServerStrategy)


def update_on_servers(fn: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Run `fn(*args)`, which writes variables, while no other worker writes.

    The servers apply the writes of one step after another: otherwise a read-modify-write (a momentum, a moving average,
    a loss scale) could lose the writes of another worker. So `fn` must be a pure function of the variables and of `args`.

    The lock is taken when all of `args` have arrived and released when the last operation of `fn` is done. A worker
    that dies while it holds the lock releases it, because the lock is a tensor of its step.

    Context: replica. Eager code runs on one worker at a time already and takes no lock.
    """
    if tf.executing_eagerly():
        return fn(*args)
    mutex = _mutex(tf.distribute.get_strategy())
    arrived = [leaf for leaf in tf.nest.flatten(list(args), expand_composites=True) if tf.is_tensor(leaf)]
    with tf.device(FIRST_SERVER), tf.control_dependencies(arrived):
        lock = tf.raw_ops.MutexLock(mutex=mutex)
    with effects() as done, tf.device(FIRST_SERVER), tf.control_dependencies([lock]):
        result = fn(*args)
    with tf.device(FIRST_SERVER), tf.control_dependencies(done):
        tf.raw_ops.ConsumeMutexLock(mutex_lock=lock)
    return result


def _mutex(strategy: Any) -> tf.Tensor:
    if strategy not in _locks:
        with tf.init_scope(), tf.device(FIRST_SERVER):
            _locks[strategy] = tf.raw_ops.MutexV2(shared_name=f"unisono_{id(strategy)}", container="")
    return _locks[strategy]


def colocate_with(variable: Any) -> Any:
    """Return a device scope on the server of `variable`. Elsewhere it does nothing."""
    if tf.executing_eagerly() or not on_parameter_servers():
        return contextlib.nullcontext()
    device = getattr(variable, "device", None)
    return tf.device(device) if device else contextlib.nullcontext()


def send_to_servers(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Return each gradient on the server of its variable, so that it is sent before the lock is taken.

    The dense gradients for one server are sent as one message for each dtype. The gradient of a sharded variable is not
    moved here: its parts are sent to their servers one by one. Context: replica.
    """
    if tf.executing_eagerly() or not on_parameter_servers():
        return list(gradients)
    sent: list[Any] = list(gradients)
    parcels: dict[Any, list[int]] = {}
    for index, (gradient, variable) in enumerate(zip(gradients, variables)):
        value = raw_value(variable)
        device = getattr(value, "device", None)
        if device and tf.is_tensor(gradient) and gradient.shape.is_fully_defined():
            parcels.setdefault((device, gradient.dtype), []).append(index)
        elif device:
            with tf.device(device):
                sent[index] = tf.nest.map_structure(tf.identity, gradient, expand_composites=True)
    for (device, _), group in parcels.items():
        for index, gradient in zip(group, _as_one_message([gradients[i] for i in group], device)):
            sent[index] = gradient
    return sent


def _as_one_message(tensors: list[tf.Tensor], device: str) -> list[tf.Tensor]:
    """Return the tensors, copied to `device`; one dtype, static shapes."""
    if len(tensors) == 1:
        with tf.device(device):
            return [tf.identity(tensors[0])]
    concatenated = tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)
    with tf.device(device):
        parts = tf.split(tf.identity(concatenated), [tensor.shape.num_elements() for tensor in tensors])
        return [tf.reshape(part, tensor.shape) for part, tensor in zip(parts, tensors)]


def shards_of(variable: Any) -> Sequence[tf.Variable] | None:
    """Return the shards of a variable that is sharded over servers; None for any other."""
    value = raw_value(variable)
    return value.variables if isinstance(value, ShardedVariable) else None
