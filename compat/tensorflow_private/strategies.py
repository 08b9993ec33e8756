"""Private state of a strategy, its replicas, devices and collectives."""

import contextlib
import copy
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from ..shared_change import share_attribute
from ..thread_context import tracing
from ..upstream_places import (
    CollectiveReplicaLauncher,
    MirroredReplicaContext,
    PerReplica,
    all_to_all_v2,
    context,
    device_util,
    pywrap_tf_session,
    pywrap_tfe,
    stateful_random_ops,
)
from ..wrong_use import WrongUse


def bytes_per_pack(strategy: tf.distribute.Strategy) -> int:
    """Return the `CommunicationOptions` of a MultiWorkerMirroredStrategy; 0: TensorFlow decides."""
    return strategy.extended._communication_options.bytes_per_pack


def devices_of(strategy: tf.distribute.Strategy) -> list[str]:
    """Return the names of the replicas' compute devices."""
    return getattr(strategy.extended, "_devices", None) or ["default device"]


def find_traced_replica() -> int | None:
    """Return the number of the replica in its worker if each replica has a tracing thread; None if one trace serves all."""
    index = getattr(tf.distribute.get_replica_context(), "_replica_id", None)
    return index if isinstance(index, int) else None


_first_group = itertools.count(1_000_000)
_prepared: weakref.WeakSet[Any] = weakref.WeakSet()


class _Launcher(CollectiveReplicaLauncher):
    """Launches the collectives of a replica. TensorFlow's ring ends the process where it gathers nothing."""

    def _all_gather(self, input_tensor: Any, options: Any) -> Any:
        """Gather tensors of one shape, with 1 instead of each extent of 0; the first axis grows."""
        if input_tensor.shape.num_elements():
            return super()._all_gather(input_tensor, options)
        with tf.device(self._device):
            shape = tf.shape(input_tensor)
            with tf.device("CPU:0"):
                begin = tf.zeros_like(shape)
                added = tf.stack([begin, tf.cast(tf.equal(shape, 0), tf.int32)], 1)
                size = tf.concat([shape[:1] * self._group_size, shape[1:]], 0)
            rows = tf.slice(super()._all_gather(tf.pad(input_tensor, added), options), begin, size)
            return tf.ensure_shape(rows, tf.TensorShape([None]).concatenate(input_tensor.shape[1:]))


def prepare_collectives(strategy: Any) -> None:
    """Make gathers of empty tensors safe, and assign a `MirroredStrategy` its own group, which never changes its size."""
    if strategy in _prepared:
        return
    way, devices = getattr(strategy.extended, "_cross_device_ops", None), strategy.extended.worker_devices
    if isinstance(way, tf.distribute.HierarchicalCopyAllReduce) and len(devices) % 2:
        raise WrongUse(
            f"cross_device_ops=HierarchicalCopyAllReduce() adds two halves of the devices, and so leaves out the last of "
            f"{len(devices)}: pass an even number of devices, or leave out `cross_device_ops`."
        )
    _prepared.add(strategy)
    launchers = [n for each in vars(strategy.extended).values() for n in getattr(each, "_launchers", ())]
    for launcher in launchers:
        launcher.__class__ = _Launcher
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        group = next(_first_group)
        for launcher in launchers:
            table = launcher._collective_keys._instance_key_table
            table.setdefault(group, dict(table[launcher._group_key]))
            launcher._group_key = group


def check_merges(check: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """Run `check`, inside, before this replica waits for the others of a strategy with a thread for each replica."""

    def checked(original: Callable[..., Any]) -> Callable[..., Any]:
        def merge(fn: Any, args: Any, kwargs: Any) -> Any:
            check()
            return original(fn, args, kwargs)

        return merge

    replica = tf.distribute.get_replica_context()
    if not isinstance(replica, MirroredReplicaContext):
        return contextlib.nullcontext()
    return share_attribute(replica, "_merge_call", checked)


class LoneReplica(tf.distribute.ReplicaContext):
    """The context of the replica that computes a step on the whole batch: a reduction over replicas is the identity."""

    def all_reduce(self, reduce_op: Any, value: Any, options: Any = None) -> Any:
        """See `tf.distribute.ReplicaContext`."""
        return value

    def merge_call(self, merge_fn: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `tf.distribute.ReplicaContext`."""
        count = len(self.strategy.extended.worker_devices)

        def of_all(value: Any) -> Any:
            return PerReplica([value] * count) if isinstance(value, tf.Tensor) and count > 1 else value

        def own(op: Any, value: Any, *_: Any, **__: Any) -> Any:
            return self.strategy.experimental_local_results(value)[0]

        def all_own(op: Any, pairs: Any, *_: Any) -> list[Any]:
            return [own(op, value) for value, _ in pairs]

        def call(fn: Any, args: Any, kwargs: Any) -> Any:
            args, kwargs = tf.nest.map_structure(lambda value: own(None, value), (args, kwargs))
            with LoneReplica(self.strategy, self._replica_id):
                return tf.nest.map_structure(of_all, fn(*args, **kwargs))

        args, kwargs = tf.nest.map_structure(of_all, (args, kwargs or {}))
        extended = self.strategy.extended
        with (
            share_attribute(extended, "_call_for_each_replica", lambda _: call),  # in this thread
            share_attribute(extended, "reduce_to", lambda _: own),
            share_attribute(extended, "batch_reduce_to", lambda _: all_own),
        ):
            return super().merge_call(merge_fn, args, kwargs)


def draw_as_one_device() -> contextlib.AbstractContextManager[None]:
    """Let a generator of TensorFlow, in a `LoneReplica`, draw without the replica's number, which it mixes in otherwise."""

    def find_number() -> Any:
        replica = tf.distribute.get_replica_context()
        return None if isinstance(replica, LoneReplica | None) else replica.replica_id_in_sync_group

    return share_attribute(stateful_random_ops, "get_replica_id", lambda _: find_number)


_owner: Any = next(c for c in tf.distribute.Strategy.__mro__ if "num_replicas_in_sync" in vars(c))


@contextlib.contextmanager
def pretend_replicas(count: int | None) -> Iterator[None]:
    """In this thread `num_replicas_in_sync` of any strategy is `count`; None: the real number."""

    def pretend(real: Any) -> property:
        return property(lambda strategy: tracing.num_replicas or real.fget(strategy))

    with share_attribute(_owner, "num_replicas_in_sync", pretend), tracing.set_to(num_replicas=count):
        yield


def launchers_of(strategy: tf.distribute.Strategy) -> list[Any]:
    """Return the launchers of the replicas' collectives; they share keys and tokens, so that all run in one order."""
    prepare_collectives(strategy)
    return list(strategy.extended._cross_device_ops._launchers)


_first_of_mesh = itertools.count(10_000_000, 100_000)
_meshes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


def launcher_in_group(strategy: Any, local: int, group: int, size: int) -> Any:
    """Return the launcher of a local replica of a strategy of several workers for collectives in a group of its replicas.

    Groups have different numbers, the same on all workers. A group has its own key, and instance keys that no other has, as
    data is sent under the instance key alone. It shares the ordering token of the replica's other collectives. Without it,
    TensorFlow would run those of different devices one after the other, and wait for good.
    """
    if strategy not in _meshes:
        _meshes[strategy] = next(_first_of_mesh)
    main = launchers_of(strategy)[local]
    launcher = copy.copy(main)
    launcher._group_key = _meshes[strategy] + group
    launcher._group_size = size
    first = main._collective_keys._instance_key_table.setdefault(launcher._group_key, {})
    first.setdefault(main._device, (1 + group % 200) * 10_000_000)
    return launcher


def gather_in_group(launcher: Any, tensor: tf.Tensor, axis: int, equal: bool) -> tf.Tensor:
    """Concatenate the tensors of a group along an axis, in its order; `equal`: their shapes are. Context: a graph."""
    if not equal:
        return launcher.all_gather(tensor, axis)
    order = [axis, *(n for n in range(tensor.shape.rank) if n != axis)]
    with tf.device(launcher._device):
        whole = launcher._all_gather(tensor if axis == 0 else tf.transpose(tensor, order), None)
        return whole if axis == 0 else tf.transpose(whole, [order.index(n) for n in range(len(order))])


def all_to_all(launcher: Any, rows: tf.Tensor) -> tf.Tensor:
    """Send matrix row r of `rows` to replica r; matrix row s of the result comes from replica s. The shapes are equal.

    Context: a graph; once for each replica of the strategy.
    """
    instance_key, options = launcher._next_instance_key(), launcher._options
    with tf.device(launcher._device):
        received: Any = all_to_all_v2(
            rows,
            launcher._group_size,
            launcher._group_key,
            instance_key,
            communication_hint=options.implementation.value,
            timeout=options.timeout_seconds or 0,
            ordering_token=launcher._get_ordering_token(),
        )
        received.set_shape(rows.shape)
        return received


def all_gather(launcher: Any, shard: tf.Tensor) -> tf.Tensor:
    """Concatenate the tensors of all replicas; their shapes are equal. Context as `all_to_all`."""
    gathered: Any = launcher._all_gather(shard, None)
    gathered.set_shape([launcher._group_size * shard.shape[0], *shard.shape[1:]])
    return gathered


current_device = device_util.current
"""The device that the current code requests; empty without a request."""


def memory_limit(device: str) -> int | None:
    """Return the bytes that TensorFlow may take of a device, such as "GPU:0"; None without it. Initializes the devices."""
    current: Any = context.context()
    current.ensure_initialized()
    wanted = tf.DeviceSpec.from_string(device)
    listed = pywrap_tfe.TFE_ContextListDevices(current._handle)
    try:
        for index in range(pywrap_tf_session.TF_DeviceListCount(listed)):
            spec = tf.DeviceSpec.from_string(pywrap_tf_session.TF_DeviceListName(listed, index))
            if (spec.device_type, spec.device_index) == (wanted.device_type, wanted.device_index or 0):
                return pywrap_tf_session.TF_DeviceListMemoryBytes(listed, index)
    finally:
        pywrap_tf_session.TF_DeleteDeviceList(listed)
    return None
