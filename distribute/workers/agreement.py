"""Decisions that all workers take together, and checks that values are the same on all of them."""

import itertools
import json
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.tensorflow_private.clusters import get_value, set_value
from ..environment import peer_timeout
from .cluster import cluster_of
from .peer_monitor import monitored_collective

_PIECE_BYTES = 2**22
_numbers = itertools.count()
_created: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_sums: weakref.WeakKeyDictionary[Any, Callable[..., Any]] = weakref.WeakKeyDictionary()


def spans_workers(strategy: tf.distribute.Strategy | None = None) -> bool:
    """Return whether the replicas of `strategy` (None: current) are in several processes that train synchronously."""
    return place_among_workers(strategy)[1] > 1


def first_local_replica(strategy: tf.distribute.Strategy) -> int:
    """Return the number, over all workers, of the first replica of this worker."""
    worker = place_among_workers(strategy)[0]
    # Only these strategies list their devices.
    return worker * len(strategy.extended.worker_devices) if worker else 0


def gather_numbers(
    values: Sequence[float], strategy: tf.distribute.Strategy | None = None
) -> list[list[float]]:
    """Return the float64 values of each worker, in the order of the workers; every worker gets all of them.

    It costs one small all-reduce; with one worker nothing. All workers must call it, at the same point of the program,
    with the same count of values. Context: host, cross-replica.
    """
    strategy = strategy or tf.distribute.get_strategy()
    me, workers = place_among_workers(strategy)
    if workers == 1:
        return [[float(value) for value in values]]
    rows = np.zeros((workers, len(values)))
    rows[me] = values
    return _sum(strategy, rows).tolist()


def from_chief(values: Sequence[float], strategy: tf.distribute.Strategy | None = None) -> list[float]:
    """Return the chief's (worker 0's) numbers, on every worker: for choices that depend on measured times."""
    return gather_numbers(values, strategy)[0]


def gather_bytes(payload: bytes, strategy: tf.distribute.Strategy, only_chief: bool = False) -> list[bytes]:
    """Return the payload of each worker, in the order of the workers. All workers must call it.

    The workers send one after the other, a few megabytes at a time, so that memory is needed only for the kept payloads.
    With `only_chief` only the chief keeps those of the others, which get nothing.
    """
    me, workers = place_among_workers(strategy)
    if workers == 1:
        return [payload]
    sizes = [int(row[0]) for row in gather_numbers([float(len(payload))], strategy)]
    result = []
    for worker in range(workers):
        received = bytearray()
        for first in range(0, sizes[worker], _PIECE_BYTES):
            size = min(_PIECE_BYTES, sizes[worker] - first)
            words = np.zeros(-(-size // 8), np.int64)
            if worker == me:
                words.view(np.uint8)[:size] = np.frombuffer(payload, np.uint8, size, first)
            words = _sum(strategy, words[None])[0]
            if me == 0 or not only_chief:
                received += words.tobytes()[:size]
        result.append(bytes(received))
    return result


def gather_json(value: Any, strategy: tf.distribute.Strategy) -> list[Any]:
    """Do as `gather_bytes` for JSON values; with one worker return the value itself."""
    if not spans_workers(strategy):
        return [value]
    return [json.loads(each) for each in gather_bytes(json.dumps(value).encode(), strategy)]


def check_same_everywhere(
    values: Mapping[str, Any],
    what: str,
    strategy: tf.distribute.Strategy | None = None,
    with_chief: bool = False,
) -> None:
    """Raise a ValueError where workers differ in values that must be the same. All workers must call it.

    `values` are short JSON values, hashes of long ones, by names such as "samples of `x`". `what` is the subject of
    the comparison, for the message, for instance "the arguments of fit". With `with_chief` each worker compares with the
    chief alone, and the chief with all, for frequent comparisons. A worker that does not reach this point in time causes a
    TimeoutError.
    """
    me, workers = place_among_workers(strategy)
    if workers == 1:
        return
    place, timeout = next(_numbers), peer_timeout()
    mine = json.loads(json.dumps(dict(values), default=repr))
    set_value(f"unisono/same/{place}/{me}", json.dumps({"what": what, "values": mine}))
    for other in range(1 if with_chief and me else workers):
        if other == me:
            continue
        try:
            theirs = json.loads(get_value(f"unisono/same/{place}/{other}", timeout))
        except tf.errors.DeadlineExceededError:
            raise TimeoutError(
                f"worker {other} did not reach {what} within {timeout:g} s: every worker must run the same program. "
                f"Find out why it is late, or raise the timeout (UNISONO_TIMEOUT)."
            ) from None
        _compare(what, me, mine, other, theirs)


def check_same_variable(strategy: tf.distribute.Strategy, name: str, kind: str) -> None:
    """Reject a variable whose `kind`, dtype and shape, differs between workers: its initial value could not be the chief's.

    Names may differ, as Keras numbers layers. Raise as `check_same_everywhere`.
    """
    number = _created[strategy] = _created.get(strategy, 0) + 1
    try:
        what = "the creation of variables"
        check_same_everywhere({f"variable {number}": kind}, what, strategy, with_chief=True)
    except ValueError as error:
        raise ValueError(f"{error} This worker has {name!r}.") from None


def _compare(what: str, me: int, mine: dict[str, Any], other: int, theirs: dict[str, Any]) -> None:
    if theirs["what"] != what:
        raise ValueError(
            f"worker {me} is at {what}, and worker {other} at {theirs['what']}: every worker must run the same program."
        )
    for name in {**mine, **theirs["values"]}:
        ours, others = mine.get(name), theirs["values"].get(name)
        if ours != others:
            first, second = sorted([(me, ours), (other, others)])
            raise ValueError(
                f"{name} must be the same on all workers for {what}. Received: {first[1]!r} on worker {first[0]}, "
                f"{second[1]!r} on worker {second[0]}. Run the same program with the same data everywhere."
            )


def place_among_workers(strategy: Any = None) -> tuple[int, int]:
    """Return this worker's number, and how many train together; (0, 1) for a strategy (None: current) of one process."""
    strategy = strategy or tf.distribute.get_strategy()
    several = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
    cluster = cluster_of(strategy.cluster_resolver) if several else None
    return (0, 1) if cluster is None else (cluster.worker_index, cluster.num_workers)


def _sum(strategy: tf.distribute.Strategy, rows: np.ndarray) -> np.ndarray:
    """Return the sums over workers, in the dtype of `rows`, float64 or int64."""
    add = _sums.get(strategy)
    ran_before = add is not None
    if add is None:
        add = _sums[strategy] = _make_sum(strategy)
    # Few widths make few graphs, and a known width can be packed.
    count = rows.shape[1]
    padded = np.zeros((len(rows), 1 << max(2, (count - 1).bit_length())), rows.dtype)
    padded[:, :count] = rows
    with monitored_collective(ran_before):
        return add(tf.constant(padded)).numpy()[:, :count]


def _make_sum(strategy: Any) -> Callable[..., Any]:
    owner = weakref.ref(strategy)
    replicas = len(strategy.extended.worker_devices)

    @tf.function
    def add(values: tf.Tensor) -> tf.Tensor:
        strategy = owner()
        assert strategy is not None  # narrows the type: the caller has checked it

        def on_replica(values: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            part = tf.where(context.replica_id_in_sync_group % replicas == 0, values, tf.zeros_like(values))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, part)

        return strategy.experimental_local_results(strategy.run(on_replica, args=(values,)))[0]

    return add
