"""Joining a cluster: waits for all workers, and limits the time until a lost peer is noticed.

`install()` adds this to every `tf.distribute.MultiWorkerMirroredStrategy`, whoever creates it.
"""

import atexit
import contextlib
import faulthandler
import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tensorflow as tf

from ...compat.tensorflow_private.clusters import (
    configure_coordination,
    get_value,
    guard_multi_worker_strategies,
    send_in_pieces,
    set_value,
)
from ..environment import RECORDS, peer_timeout, replicas_per_worker
from ..hardware.devices import simulate_replicas
from . import peer_monitor, records
from .agreement import check_same_variable
from .cluster import Cluster, ClusterError, cluster_of, read_cluster, rename_master
from .rendezvous import rendezvous

_HEARTBEAT = 10.0
_SHUTDOWN = 10.0
_PIECE = 64 * 1024
"""Bytes of the chunks in which collectives are sent; larger ones were not faster (design 0023)."""

_joined = False


def install() -> None:
    """Guard every MultiWorkerMirroredStrategy that is created from now on; a second call does nothing."""
    task = ""  # without a cluster
    with contextlib.suppress(ClusterError):  # creating a strategy raises the error
        if (cluster := read_cluster()) is not None:
            task = f"{cluster.task_type} {cluster.task_index}"
    records.start(os.environ.get(RECORDS), task)
    guard_multi_worker_strategies(
        _check_tf_config, _join, replicas_per_worker, peer_monitor.monitored_collective, check_same_variable
    )


def _check_tf_config() -> None:
    """Raise the errors of TF_CONFIG, and rename its `master` for TensorFlow."""
    if read_cluster() is not None and '"master"' in os.environ["TF_CONFIG"]:
        os.environ["TF_CONFIG"] = json.dumps(rename_master(json.loads(os.environ["TF_CONFIG"])))


def _join(resolver: Any, start: Callable[[], None]) -> None:
    """Join the cluster of `resolver` by `start()`."""
    global _joined
    cluster = cluster_of(resolver)
    if _joined or cluster is None or cluster.task_type not in ("chief", "worker"):
        start()
        return
    simulate_replicas()
    if cluster.num_workers > 1:
        timeout = peer_timeout()
        rendezvous(cluster, timeout, digest_program())
        trained = [(job, len(cluster.jobs[job])) for job in ("chief", "worker") if cluster.jobs.get(job)]
        leader = f"/job:{trained[0][0]}/replica:0/task:0"
        configure_coordination(leader, trained, min(_HEARTBEAT, timeout), min(_SHUTDOWN, timeout))
        send_in_pieces(_PIECE)
        _run_bounded(start, timeout)
        # TensorFlow's coordination service handles SIGTERM: a worker would neither end nor save on request.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM) or signal.SIG_DFL)
        peer_monitor.begin(cluster, timeout)
        _leave_together(cluster, min(_SHUTDOWN, timeout))
    else:
        start()
    _joined = True


def _leave_together(cluster: Cluster, seconds: float) -> None:
    """At the end of the program, wait up to `seconds` until it is over on all workers, unless it ends with an error.

    A worker has done its part of a collective when the data is handed to the network. If its process ended then, a peer that
    is still receiving would fail.
    """
    over, left = threading.Event(), threading.Event()

    def agree() -> None:
        """Agree, in a separate thread, because calls into TensorFlow never end if the leader hangs."""
        over.wait()
        end = time.monotonic() + seconds
        with contextlib.suppress(tf.errors.OpError):
            set_value(f"unisono/over/{cluster.worker_index}", "1")
            for other in range(cluster.num_workers):
                get_value(f"unisono/over/{other}", end - time.monotonic())
        left.set()

    def leave() -> None:
        if getattr(sys, "last_value", None) is None:
            over.set()
            left.wait(seconds + 1.0)

    threading.Thread(target=agree, name="unisono-leave", daemon=True).start()
    atexit.register(leave)


def digest_program() -> str:
    """Return a digest of the running script; "" without a file (a notebook, a prompt)."""
    path = getattr(sys.modules.get("__main__"), "__file__", None)
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else ""
    except OSError:
        return ""


def _run_bounded(start: Callable[[], None], timeout: float) -> None:
    """Run `start`; end the process with a message on a timeout, because TensorFlow offers no other way to stop it."""

    def give_up() -> None:
        print(
            f"unisono: a worker was lost while the cluster started, and TensorFlow did not notice within "
            f"{timeout:g} s: this worker exits.",
            file=sys.stderr,
            flush=True,
        )
        os._exit(os.EX_TEMPFAIL)

    timer = threading.Timer(timeout, give_up)
    timer.daemon = True
    timer.start()
    # TensorFlow waits for a worker that has gone without releasing Python's lock: no thread of Python's can end that.
    faulthandler.dump_traceback_later(timeout + 1.0, exit=True, file=2)
    try:
        start()
    finally:
        faulthandler.cancel_dump_traceback_later()
        timer.cancel()
