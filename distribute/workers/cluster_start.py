"""Joining a cluster: everybody is there, and a peer that is lost later is noticed within a stated time.

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

import tensorflow as tf

from ...compat.clusters import (
    check_before_start,
    configure_coordination,
    wrap_local_devices,
    wrap_multi_worker_start,
    wrap_variable_creation,
)
from .cluster import Cluster, read_tf_config
from .roll_call import roll_call

DEFAULT_TIMEOUT = 60.0
_HEARTBEAT = 10.0
_SHUTDOWN = 10.0
_joined = False


def peer_timeout() -> float:
    """Seconds after which a peer that died, hangs or never came is an error: UNISONO_TIMEOUT, or 60.

    Raises:
        ValueError: the variable is not a number of at least 1.
    """
    text = os.environ.get("UNISONO_TIMEOUT", "")
    if not text:
        return DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds >= 1:
        raise ValueError(f"UNISONO_TIMEOUT must be a number of seconds of at least 1. Received: {text!r}")
    return seconds


def replicas_per_worker() -> int:
    """Replicas that a worker without accelerators has: UNISONO_REPLICAS_PER_WORKER, or 1.

    Raises:
        ValueError: the variable is not a whole number of at least 1.
    """
    text = os.environ.get("UNISONO_REPLICAS_PER_WORKER", "")
    if not text:
        return 1
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(
            f"UNISONO_REPLICAS_PER_WORKER must be a whole number of at least 1. Received: {text!r}"
        )
    return int(text)


def install() -> None:
    """Guards every MultiWorkerMirroredStrategy that is made from now on; a second call does nothing."""
    check_before_start(lambda: read_tf_config(os.environ) and None)
    wrap_multi_worker_start(_join)
    wrap_local_devices(replicas_per_worker)
    wrap_variable_creation(_together)


def _together() -> Any:
    """Every worker creates the same variables in the same order: the chief sends their first values."""
    from .peer_watch import meeting

    return meeting()


def _join(resolver: Any, start: Callable[[], None]) -> None:
    """Joins the cluster of `resolver` by `start()`."""
    global _joined
    jobs = {kind: tuple(tasks) for kind, tasks in resolver.cluster_spec().as_dict().items()}
    kind = resolver.task_type
    if _joined or kind not in ("chief", "worker"):
        start()
        return
    cluster = Cluster(jobs, kind, int(resolver.task_id or 0))
    if replicas_per_worker() > 1 and not tf.config.list_physical_devices("GPU"):
        from ..automatic import simulate_devices

        simulate_devices(replicas_per_worker())
    if cluster.num_workers > 1:
        timeout = peer_timeout()
        roll_call(cluster, timeout, _program())
        leader = "/job:chief/replica:0/task:0" if jobs.get("chief") else "/job:worker/replica:0/task:0"
        trained = [(name, len(jobs[name])) for name in ("chief", "worker") if jobs.get(name)]
        configure_coordination(leader, trained, min(_HEARTBEAT, timeout), min(_SHUTDOWN, timeout))
        _bounded(start, timeout)
        _take_sigterm_back()
        from . import peer_watch

        peer_watch.begin(cluster, timeout)
    else:
        start()
    _joined = True


def _take_sigterm_back() -> None:
    """TensorFlow's coordination service has taken SIGTERM for itself: a worker would not end, nor save, when asked to."""
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
