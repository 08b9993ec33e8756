"""Joining a cluster: all workers are there, and a peer that is lost later is noticed within a stated time.

`install()` puts this around every `tf.distribute.MultiWorkerMirroredStrategy`, whoever makes it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ...compat.clusters import configure_coordination, guard_multi_worker_strategies, send_in_pieces
from ..devices import simulate_replicas
from ..environment import RECORDS, peer_timeout, replicas_per_worker
from . import peer_monitor, records
from .agreement import check_same_variable
from .cluster import ClusterError, cluster_of, read_tf_config
from .rendezvous import rendezvous

_HEARTBEAT = 10.0
_SHUTDOWN = 10.0
_PIECE = 64 * 1024
"""Bytes of the strings in which collectives are sent; larger ones were not faster (design 0023)."""

_joined = False


def install() -> None:
    """Guards every MultiWorkerMirroredStrategy that is made from now on; a second call does nothing."""
    records.start(os.environ.get(RECORDS), _task())
    guard_multi_worker_strategies(
        lambda: read_tf_config(os.environ),
        _join,
        replicas_per_worker,
        peer_monitor.monitored_collective,
        check_same_variable,
    )


def _task() -> str:
    """What this process is in the cluster of TF_CONFIG, for its record; "" where that is none, or wrong."""
    try:
        cluster = read_tf_config(os.environ)
    except ClusterError:
        return ""  # making a strategy raises it
    return "" if cluster is None else f"{cluster.task_type} {cluster.task_index}"


def _join(resolver: Any, start: Callable[[], None]) -> None:
    """Joins the cluster of `resolver` by `start()`."""
    global _joined
    cluster = cluster_of(resolver)
    if _joined or cluster is None or cluster.task_type not in ("chief", "worker"):
        start()
        return
    simulate_replicas()
    if cluster.num_workers > 1:
        timeout = peer_timeout()
        rendezvous(cluster, timeout, _program())
        trained = [(job, len(cluster.jobs[job])) for job in ("chief", "worker") if cluster.jobs.get(job)]
        leader = f"/job:{trained[0][0]}/replica:0/task:0"
        configure_coordination(leader, trained, min(_HEARTBEAT, timeout), min(_SHUTDOWN, timeout))
        send_in_pieces(_PIECE)
        _bounded(start, timeout)
        _restore_sigterm()
        peer_monitor.begin(cluster, timeout)
    else:
        start()
    _joined = True


def _restore_sigterm() -> None:
    """Undoes that TensorFlow's coordination service handles SIGTERM: a worker would neither end nor save when asked to."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)


def _program() -> str:
    """A digest of the script that runs; "" where there is no file (a notebook, a prompt)."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""


def _bounded(start: Callable[[], None], timeout: float) -> None:
    """Runs `start`; ends the process with a sentence if it takes too long, as TensorFlow offers no other way out."""

    def give_up() -> None:
        print(
            f"unisono: a worker was lost while the cluster started, and TensorFlow did not notice within "
            f"{timeout:g} s: this worker ends.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(1)

    timer = threading.Timer(timeout, give_up)
    timer.daemon = True
    timer.start()
    try:
        start()
    finally:
        timer.cancel()
