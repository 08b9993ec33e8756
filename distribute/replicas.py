"""Communication between replicas: the few operations that the other packages build on.

Context: the docstring of each function says in which context it may be called. None of them knows of models or losses.
"""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from ..compat.tensorflow_graphs.graphs import graph_function
from ..compat.tensorflow_private.strategies import bytes_per_pack, find_traced_replica, prepare_collectives
from .hardware.devices import is_gpu
from .parameter_servers.updates import on_parameter_servers, update_on_servers
from .step_context import note_collective

_CARRIED = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)
_BYTES_PER_PACK = 2**20
_BYTES_PER_PACK_OF_GPUS = 25 * 2**20
"""PyTorch's DistributedDataParallel uses it for NCCL: large enough for the links, several in a backward pass."""


_THREADED = (
    tf.distribute.MirroredStrategy,
    tf.distribute.MultiWorkerMirroredStrategy,
    tf.distribute.experimental.CentralStorageStrategy,
)


def num_replicas() -> int:
    """Return the replicas in sync of the current strategy; 1 without one."""
    return tf.distribute.get_strategy().num_replicas_in_sync


def runs_in_threads(strategy: Any) -> bool:
    """Return whether `strategy.run` runs each replica in a separate thread, even a single one."""
    return strategy.num_replicas_in_sync > 1 or isinstance(strategy, _THREADED)


def in_replica_context() -> bool:
    """Return whether this code runs once per replica (inside `strategy.run`, or with no strategy at all)."""
    return tf.distribute.get_replica_context() is not None


def replica_id() -> Any:
    """Return this replica's number over all workers, from 0: an int or int32 scalar tensor. Context: replica."""
    return tf.distribute.get_replica_context().replica_id_in_sync_group


def all_reduce_sum(tensors: Sequence[Any]) -> list[Any]:
    """Sum each tensor or `tf.IndexedSlices` over all replicas; every replica gets the same bits.

    The dtypes and the dense shapes are the same on every replica; each sum has the kind, dtype and shape of its input.

    Context: replica. With one replica the graph stays unchanged.
    """
    tensors = list(tensors)
    if not tensors or num_replicas() == 1:
        return tensors
    if any(tensor.dtype.is_complex for tensor in tensors):  # which collectives cannot add
        sums = all_reduce_sum([to_carrier(t) if t.dtype.is_complex else t for t in tensors])
        return [from_carrier(s, t.dtype) if t.dtype.is_complex else s for s, t in zip(sums, tensors)]
    note_collective(t.indices if isinstance(t, tf.IndexedSlices) else t for t in tensors)
    context = tf.distribute.get_replica_context()
    prepare_collectives(context.strategy)
    result: list[Any] = [None] * len(tensors)
    for group in _by_dtype(tensors):  # over several workers TensorFlow packs its inputs into one tensor
        parts = [_on_this_device(tensors[i]) for i in group]
        sums = context.all_reduce(tf.distribute.ReduceOp.SUM, parts, _packs(parts))
        for i, total in zip(group, sums):
            result[i] = total
    return result


def _packs(tensors: Sequence[Any]) -> Any:
    """Return options for several workers or GPUs: collectives small enough to overlap with the backward pass.

    By default TensorFlow packs everything into one collective, which begins when the last gradient is ready. Packs are
    launched from the last tensor to the first, one after the other, because the gradients of the last layers are ready
    first. The user's options for the strategy take precedence.
    """
    strategy = tf.distribute.get_strategy()
    workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    gpus = isinstance(strategy, tf.distribute.MirroredStrategy) and _on_gpus(strategy)
    if not (workers or gpus) or bytes_per_pack(strategy):
        return None
    dense = [t for t in tensors if not isinstance(t, tf.IndexedSlices)]
    if len(dense) < 2 or any(t.shape.num_elements() is None for t in dense):
        return None
    return tf.distribute.experimental.CommunicationOptions(bytes_per_pack=bytes_of_packs(strategy))


def bytes_of_packs(strategy: Any = None) -> int:
    """Return the maximum bytes of a collective of many tensors, set by the user or by us (None: the current strategy)."""
    strategy = strategy or tf.distribute.get_strategy()
    return bytes_per_pack(strategy) or (_BYTES_PER_PACK_OF_GPUS if _on_gpus(strategy) else _BYTES_PER_PACK)


def _on_gpus(strategy: Any) -> bool:
    return all(is_gpu(device) for device in strategy.extended.worker_devices)


def _by_dtype(tensors: Sequence[Any]) -> list[list[int]]:
    """Return the indices of the tensors of each dtype."""
    groups: dict[Any, list[int]] = {}
    for index, tensor in enumerate(tensors):
        groups.setdefault(tensor.dtype, []).append(index)
    return list(groups.values())


def _on_this_device(tensor: Any) -> Any:
    """Return `tensor` as made by an operation of this replica, as a function's argument has no device to reduce on."""
    if isinstance(tensor, tf.IndexedSlices):
        return tf.IndexedSlices(tf.identity(tensor.values), tf.identity(tensor.indices), tensor.dense_shape)
    return tf.identity(tensor)


def all_reduce_sum_packed(
    tensors: Sequence[Any], below: int | None = None, send: Callable[[list[Any]], list[Any]] = all_reduce_sum
) -> list[Any]:
    """Sum over replicas, in which small dense tensors share one collective for each dtype.

    `below`: only those that certainly have fewer elements. `send` sums them, one flat tensor for each dtype, and all others
    as they are. Context: replica.
    """
    tensors = list(tensors)
    if num_replicas() == 1:
        return tensors
    counts = [None if isinstance(t, tf.IndexedSlices) else t.shape.num_elements() for t in tensors]
    small = [i for i, n in enumerate(counts) if below is None or (n is not None and n < below)]
    of_dtypes = _by_dtype([tensors[i] for i in small])
    groups = [[small[i] for i in group] for group in of_dtypes if len(group) > 1]
    alone = sorted(set(range(len(tensors))).difference(*groups))
    flat = [tf.concat([tf.reshape(tensors[i], [-1]) for i in group], 0) for group in groups]
    sent = send(flat + [tensors[i] for i in alone])
    result: dict[int, Any] = dict(zip(alone, sent[len(groups) :]))
    for group, total in zip(groups, sent):
        known = all(tensors[i].shape.is_fully_defined() for i in group)
        sizes = [tensors[i].shape.num_elements() if known else tf.size(tensors[i]) for i in group]
        for i, part in zip(group, tf.split(total, sizes, num=len(group))):
            part = tf.reshape(part, tensors[i].shape if known else tf.shape(tensors[i]))
            result[i] = part if known else tf.ensure_shape(part, tensors[i].shape)
    return [result[i] for i in range(len(tensors))]


def local_copy(variable: Any) -> tf.Variable:
    """Return this replica's copy of a Keras, TensorFlow or distributed variable, to read and write: a `tf.Variable`.

    Writes to it do not affect other replicas, except where all share one copy (`CentralStorageStrategy`). Context: replica.
    """
    value = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
    if not isinstance(value, tf.distribute.DistributedValues):
        return value
    copies = tf.distribute.get_strategy().experimental_local_results(value)
    if len(copies) == 1:
        return copies[0]
    return copies[local_replica_index()]


def copies_of(variable: Any) -> tuple[Any, ...]:
    """Return the copies of `variable` in this process; for a plain variable itself. Context: any."""
    value = variable if isinstance(variable, tf.Variable) else getattr(variable, "value", variable)
    values = getattr(value, "values", None)
    return tuple(values) if isinstance(values, list | tuple) else (value,)


def local_replica_index() -> int:
    """Return this replica's number within its worker, known while tracing. Context: replica."""
    if (known := find_traced_replica()) is not None:
        return known
    index = tf.get_static_value(replica_id())
    return int(index) % max(1, len(tf.distribute.get_strategy().extended.worker_devices))


def shares_variables(strategy: Any = None) -> bool:
    """Return whether the replicas of a strategy (None: the current one) share one copy of every variable."""
    return isinstance(
        strategy or tf.distribute.get_strategy(),
        tf.distribute.experimental.CentralStorageStrategy
        | tf.distribute.experimental.ParameterServerStrategy,
    )


def once_per_copy(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Return `fn` for a call on every replica, so that each copy of each variable is written exactly once.

    Where every replica has its own copies, this is `fn` itself: each replica writes its own, and the arguments must be equal
    on all replicas for the copies to stay equal. Where all share one copy, it runs once, with the first replica's arguments;
    on parameter servers, while no other worker writes. Inside `fn` write through `local_copy(variable)` or
    `keras.Optimizer.assign`; `tf.cond` is allowed. Context: replica; without a strategy any.
    """
    context = tf.distribute.get_replica_context()
    if context is None or not shares_variables():
        return fn
    if on_parameter_servers() and num_replicas() == 1:
        return lambda *args: update_on_servers(fn, args)

    def once(strategy: tf.distribute.Strategy, *per_replica: Any) -> Any:
        first = tf.nest.map_structure(lambda v: strategy.experimental_local_results(v)[0], per_replica)
        return fn(*first)

    return lambda *args: context.merge_call(once, args=args)


def function_of_its_own(fn: Callable[..., None]) -> Callable[..., None]:
    """Return `fn`, but with bitwise identical results on replicas with equal arguments, even for sums of many terms.

    The replicas of a worker share one graph, and Grappler sorts the terms of a sum of three or more by the names of their
    operations (`a + b + c` and `tf.add_n` alike). The names differ between replicas, and with them the order of the sum. As
    a separate function, `fn` has the same operation names on each replica and is optimized alike. It begins when all its
    arguments are ready. Context: replica. With one replica, where all share one copy, and eagerly it is `fn` itself.
    """
    if tf.executing_eagerly() or num_replicas() == 1 or shares_variables():
        return fn
    return graph_function(fn, experimental_attributes={"_noinline": True})


def of_first_replica(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the first replica's tensors, on every replica; the shapes are equal on all. Context: replica."""
    if num_replicas() == 1:
        return list(tensors)
    first = tf.equal(replica_id(), 0)
    known = tf.get_static_value(first)
    sent = [*map(to_carrier, tensors)]
    if known is None:
        sent = [tf.where(first, t, tf.zeros_like(t)) for t in sent]
    elif not known:
        sent = [*map(tf.zeros_like, sent)]
    return [from_carrier(total, t.dtype) for total, t in zip(all_reduce_sum_packed(sent), tensors)]


def to_carrier(tensor: tf.Tensor) -> tf.Tensor:
    """Return numbers in a dtype that collectives know and that holds all of them; complex ones as two along a last axis."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return tf.bitcast(tensor, dtype.real_dtype)
    if dtype in _CARRIED:
        return tensor
    return tf.cast(tensor, tf.float32 if dtype.is_floating else tf.int64 if dtype.size >= 4 else tf.int32)


def from_carrier(sent: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Return what a collective has made of `to_carrier`, in the dtype that was given to that."""
    return tf.bitcast(sent, dtype) if dtype.is_complex else tf.cast(sent, dtype)
