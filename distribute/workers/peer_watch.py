"""A peer that hangs: noticed because it does not come to the step at which the others wait for it.

When a peer dies or is stopped, TensorFlow's own heartbeat ends the collectives of the others. One that sleeps in Python
still sends heartbeats. So every worker tells the others how many meeting points (executions, agreements) it
has come to, and one that waits at a meeting point for too long looks who has not come.
"""

from __future__ import annotations

import atexit
import contextlib
import sys
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

import tensorflow as tf

from ...compat.clusters import abort_collectives, delete_value, get_value, report_error, set_value
from .cluster import Cluster
from .own_text import essence
from .record import short
from .recorder import at_meeting, ends_program
from .ticker import Ticker

_SLOWER = 10.0
_READ = 1.0
_MOST_TOLD = 500
_watch: PeerWatch | None = None


class PeerWatch:
    """Owns a thread that publishes this worker's count and, when this worker waits too long, reads the others'.

    Args:
        cluster: its workers meet.
        timeout: float; seconds of waiting after which a peer that has not come is an error.
    """

    def __init__(self, cluster: Cluster, timeout: float) -> None:
        self._me, self._peers = cluster.worker_index, cluster.num_workers
        self._timeout = timeout
        self._pause = min(2.0, timeout / 20)
        self._count = 0
        self._published = -1
        self._since: float | None = None
        self._allowance = float("inf")
        self._longest = 0.0
        self._ticker = Ticker("peer-watch", self._look, lambda: self._pause)

    def start(self) -> None:
        """Starts the thread."""
        self._ticker.start()

    def stop(self) -> None:
        """Ends the thread, in a bounded time."""
        self._ticker.stop(2 * _READ + self._pause)

    @contextlib.contextmanager
    def meeting(self, familiar: bool) -> Iterator[None]:
        """Around one meeting point. `familiar`: it has run before, so nothing compiles and its duration is known."""
        self._allowance = self._timeout + _SLOWER * self._longest if familiar else float("inf")
        self._count += 1
        at_meeting(self._count, True)
        began = self._since = time.monotonic()
        try:
            yield
            if familiar:
                self._longest = max(self._longest, time.monotonic() - began)
        finally:
            self._since = None
            at_meeting(self._count, False)

    def _look(self) -> bool:
        """Publishes the count and looks who is late; False once there is nothing left to watch."""
        try:
            self._publish()
            since, count = self._since, self._count
            waited = 0.0 if since is None else time.monotonic() - since
            message = self._complaint(count, waited) if waited > 0.85 * self._timeout else None
            if message and self._since == since:
                abort_collectives(message)
                return False
        except tf.errors.OpError:
            return False  # the cluster is gone; the collectives have ended with an error of their own
        return True

    def _publish(self) -> None:
        count = self._count
        if count == self._published:
            return
        key = f"unisono/meetings/{self._me}"
        if self._published >= 0:
            delete_value(key)
        set_value(key, str(count))
        self._published = count

    def _complaint(self, count: int, waited: float) -> str | None:
        """Which workers have not come; None when all have come and may still be computing."""
        late = [i for i in range(self._peers) if i != self._me and self._count_of(i, count) < count]
        if late:
            names = " and ".join(f"worker {i}" for i in late)
            return (
                f"lost contact with {names}: worker {self._me} has waited {waited:.0f} s at step boundary {count}, "
                f"to which {names} did not come. It hangs or is too slow; allow more time with UNISONO_TIMEOUT "
                f"(now {self._timeout:g} s)."
            )
        if waited > self._allowance:
            return (
                f"an execution has taken {waited:.0f} s, where the longest took {self._longest:.1f} s: a worker hangs "
                f"in it. Allow more time with UNISONO_TIMEOUT (now {self._timeout:g} s)."
            )
        return None

    def _count_of(self, worker: int, otherwise: int) -> int:
        try:
            return int(get_value(f"unisono/meetings/{worker}", _READ))
        except tf.errors.DeadlineExceededError:
            return 0  # never published; or in the instant between deletion and insertion, then the next tick knows
        except tf.errors.OpError:
            return otherwise


def begin(cluster: Cluster, timeout: float) -> None:
    """Starts the watch of this process, and has an error of the program told to all workers."""
    global _watch
    _watch = PeerWatch(cluster, timeout)
    _watch.start()
    atexit.register(_watch.stop)  # no call into TensorFlow while it is taken down
    previous = sys.excepthook

    def tell(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> Any:
        previous(kind, error, trace)
        if ends_program(error):
            text = short(essence(str(error)), _MOST_TOLD)
            with contextlib.suppress(Exception):
                report_error(f"worker {cluster.worker_index} failed: {kind.__name__}: {text}")

    sys.excepthook = tell


@contextlib.contextmanager
def meeting(familiar: bool = True) -> Iterator[None]:
    """Around anything at which all workers meet: an execution, an agreement, a collective of one's own.

    Every worker must come to the same meetings in the same order. With one worker this does nothing.

    Args:
        familiar: whether this has run before, so that nothing is compiled now.
    """
    if _watch is None:
        yield
    else:
        with _watch.meeting(familiar):
            yield
