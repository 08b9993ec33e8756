"""Detects a peer that hangs: it does not reach a collective in which the others wait for it."""

from __future__ import annotations

import atexit
import contextlib
import re
import sys
import time
from collections.abc import Iterator

import tensorflow as tf

from ...compat.tensorflow_private.clusters import (
    abort_collectives,
    delete_value,
    get_value,
    report_error,
    set_value,
)
from .addresses import keep_alive
from .cluster import Cluster, find_hosts
from .records import at_collective, at_fatal_error, error_record, short
from .ticker import Ticker

_SILENCE = 10.0  # seconds after which a connection to a peer is lost if nothing that was sent is acknowledged
_SLOWER = 10.0
SAME_EVERYWHERE = (
    "Pass all workers the same data, or a function of tf.distribute.InputContext for data that differs."
)
_UNEVEN = re.compile(r"the input of worker \d+ ended after .*")
_READ = 1.0
_MOST_TEXT = 500
_CLASH = re.compile(r"ollective instance \d+")
_monitor: PeerMonitor | None = None


class PeerMonitor:
    """Owns a thread that publishes this worker's count and, when this worker waits too long, asks for the others.

    TensorFlow's heartbeat detects a peer that dies or is stopped, but one that sleeps in Python still sends it. So every
    worker publishes how many monitored collectives (compiled calls, agreements) it has reached. After `timeout` seconds of
    waiting, a peer that has not reached the same collective is an error. Heartbeats go only to worker 0, but a link between
    two others may be cut. So a worker that waits lets the kernel watch the connections that TensorFlow has made; which
    others are needed, only TensorFlow knows. A worker whose data has ended waits for those that have more, and they for it:
    it tells them how many batches it had.
    """

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self._me, self._peers, self._addresses = cluster.worker_index, cluster.num_workers, cluster.workers
        self._timeout = timeout
        self._silence, self._watched = min(_SILENCE, timeout / 2), 0
        self._count = 0
        self._published = -1
        self._since: float | None = None
        self._allowance = float("inf")
        self._longest = 0.0
        # Of the last collective that read the same data everywhere.
        self._drawn: tuple[int, tf.Tensor | None] = (0, None)
        self._pause = pause = min(2.0, timeout / 20)
        ticker = Ticker("peer-monitor", self._check, pause)
        ticker.start()
        atexit.register(ticker.stop, 2 * _READ + pause)  # no call into TensorFlow during its shutdown

    @contextlib.contextmanager
    def monitor(self, ran_before: bool, drawn: tf.Tensor | None = None) -> Iterator[None]:
        """Monitor one collective, in the block; `monitor_call` explains the arguments."""
        self._allowance = self._timeout + _SLOWER * self._longest if ran_before else float("inf")
        self._count += 1
        at_collective(self._count)
        if drawn is not None:
            self._drawn = self._count, drawn
        began = self._since = time.monotonic()
        try:
            yield
            if ran_before:
                self._longest = max(self._longest, time.monotonic() - began)
        except tf.errors.OpError as error:
            if passed_on := _UNEVEN.search(str(error)):
                raise ValueError(passed_on[0]) from None
            # Workers met in different collectives; the thread of the one whose data has ended may not have published it yet.
            clash = _CLASH.search(str(error))
            if message := self._find_uneven_end(2 * self._pause + _READ) if clash else None:
                raise ValueError(message) from None
            raise
        finally:
            self._since = None
            at_collective(self._count)

    def _check(self) -> bool:
        """Publish the count and find late workers; False once there is nothing left to monitor."""
        try:
            self._publish()
            since, count = self._since, self._count
            waited = 0.0 if since is None else time.monotonic() - since
            if waited > self._silence / 2 and self._watched != count:
                self._watched = count
                for address in self._addresses:
                    keep_alive(address, self._silence)
            message = self._find_uneven_end() if waited > self._pause else None
            if waited > 0.85 * self._timeout:
                message = message or self._complaint(count, waited)
            if message and self._since == since:
                abort_collectives(message)
                return False
        except tf.errors.OpError:
            return False  # the cluster is gone; the collectives have ended with an error
        return True

    def _publish(self) -> None:
        if (count := self._count) != self._published:
            key = f"unisono/collectives/{self._me}"
            if self._published >= 0:
                delete_value(key)
            set_value(key, str(count))
            self._published = count

    def _find_uneven_end(self, seconds: float = _READ) -> str | None:
        """Return which worker's data has ended before that of this one, or after it: the first that ends tells it."""
        call, handle = self._drawn
        if handle is None or self._count > call + 1:  # the agreement that follows has compared it
            return None
        key = f"unisono/ended/{call}"
        # Of an input that is closed, and where nobody tells anything or the cluster is gone.
        with contextlib.suppress(tf.errors.OpError):
            batches, ended = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64).numpy().tolist()
            if ended:
                _tell(key, f"{batches} {self._me}")
            theirs, other = map(int, get_value(key, seconds).split())
            if other == self._me:
                return get_value(f"{key}/uneven", seconds)
            if theirs < batches or (ended and theirs > batches):
                (fewer, shorter), (more, longer) = sorted([(batches, self._me), (theirs, other)])
                message = f"the input of worker {shorter} ended after {fewer} batches, and worker {longer} has read {more}. "
                _tell(f"{key}/uneven", message + SAME_EVERYWHERE)
                return message + SAME_EVERYWHERE
        return None

    def _complaint(self, count: int, waited: float) -> str | None:
        """Describe the workers that have not reached it; None if all have and may still be computing."""
        if late := [i for i in range(self._peers) if i != self._me and self._count_of(i, count) < count]:
            names = " and ".join(f"worker {i}" for i in late)
            return (
                f"lost contact with {names}: worker {self._me} has waited {waited:.0f} s at step boundary {count}, "
                f"which {names} did not reach. It hangs or is too slow; allow more time with UNISONO_TIMEOUT "
                f"(now {self._timeout:g} s)."
            )
        if waited > self._allowance:
            return (
                f"a compiled call has taken {waited:.0f} s, and the longest before took {self._longest:.1f} s: a worker "
                f"hangs in it. Allow more time with UNISONO_TIMEOUT (now {self._timeout:g} s)."
            )
        return None

    def _count_of(self, worker: int, otherwise: int) -> int:
        try:
            return int(get_value(f"unisono/collectives/{worker}", _READ))
        except tf.errors.DeadlineExceededError:
            return 0  # never published; or between deletion and insertion, then the next tick reads it
        except tf.errors.OpError:
            return otherwise


def _tell(key: str, text: str) -> None:
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        set_value(key, text)


def begin(cluster: Cluster, timeout: float) -> None:
    """Start the monitor of this process, and report an error of the program to all workers."""
    global _monitor
    _monitor = PeerMonitor(cluster, timeout)

    def report(error: BaseException) -> None:
        record = error_record(error)
        if hosts := find_hosts(record.blame):
            print(f"unisono: {hosts}.", file=sys.stderr, flush=True)
        report_error(f"worker {cluster.worker_index} failed: {record.kind}: {short(record.text, _MOST_TEXT)}")

    at_fatal_error(report)


@contextlib.contextmanager
def monitored_collective(ran_before: bool = True) -> Iterator[None]:
    """Monitor a collective of all workers, in the block: report a worker that does not reach it.

    The other workers raise an error that names it after UNISONO_TIMEOUT seconds. Every worker must enter the same
    collectives in the same order. With one worker this does nothing.

    Args:
        ran_before: whether this has run before, so that nothing is compiled now.

    Examples:
        >>> with unisono.distribute.monitored_collective(ran_before=False):
        ...     total = tf.distribute.get_strategy().reduce("SUM", tf.ones([2]), axis=None)
    """
    with monitor_call(ran_before):
        yield


def monitor_call(ran_before: bool, drawn: tf.Tensor | None = None) -> contextlib.AbstractContextManager[None]:
    """Return what is entered around one collective. `ran_before`: nothing compiles, and its duration is known.

    `drawn` is the handle of a variable, int64 `(2,)`, where all workers read the same data: the batches that this one has
    read in the pass, and 1 once the data has ended.
    """
    return contextlib.nullcontext() if _monitor is None else _monitor.monitor(ran_before, drawn)
