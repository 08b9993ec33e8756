"""Whether all workers are there: asked over plain sockets before TensorFlow joins the cluster, as it would wait for an hour.

Each worker listens at its own address, identifies itself to whoever connects, and asks all others. Once it has seen them
all it leaves its port to TensorFlow's server. A peer that is already there with that server counts as seen.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator

from .addresses import LOOPBACK, first_words, is_grpc, split_address
from .cluster import Cluster, ClusterError

_HELLO = b"unisono "
_PAUSE = 0.1
_ASK = 2.0


def roll_call(cluster: Cluster, timeout: float, program: str = "") -> None:
    """Waits until every worker of the cluster has come.

    Args:
        cluster: this process must be one of its workers.
        timeout: float; seconds.
        program: digest of what every worker must run, a string without spaces; "" is not compared.

    Raises:
        ClusterError: this worker's port is taken, or a peer has another description of the cluster or another program.
        TimeoutError: a worker has not come in time; the message names it.
    """
    digest = hashlib.sha256(json.dumps(cluster.workers).encode()).hexdigest()[:16]
    mark = _HELLO + f"{digest} {program[:16]}\n".encode()
    missing = {i: address for i, address in enumerate(cluster.workers) if i != cluster.worker_index}
    until = time.monotonic() + timeout
    with _answering(cluster, mark):
        while True:
            for index, address in list(missing.items()):
                answer = first_words(address, max(0.1, min(_ASK, until - time.monotonic())))
                if answer.startswith(_HELLO):
                    try:
                        _compare(
                            answer, mark, f"worker {index} at {address}", f"worker {cluster.worker_index}"
                        )
                    except ClusterError:
                        time.sleep(_ASK)  # go on answering, so that the peer learns of it too
                        raise
                if answer.startswith(_HELLO) or is_grpc(answer):
                    del missing[index]
            if not missing:
                return
            if time.monotonic() > until:
                names = ", ".join(f"worker {index} ({address})" for index, address in missing.items())
                raise TimeoutError(
                    f"{names} did not come within {timeout:g} s: see why it does not start, or allow more time "
                    f"(launch --timeout, or the variable UNISONO_TIMEOUT)."
                )
            time.sleep(_PAUSE)


def _compare(answer: bytes, mark: bytes, peer: str, me: str) -> None:
    theirs, ours = answer.split(b" "), mark.split(b" ")
    if theirs[1] != ours[1]:
        raise ClusterError(
            f"{peer} has a TF_CONFIG with other workers than this one ({me}): give the same 'cluster' to all."
        )
    if theirs[2] != ours[2] and b"\n" not in (theirs[2], ours[2]):
        raise ClusterError(
            f"{peer} runs another script than this one ({me}): every worker must run the same program."
        )


@contextlib.contextmanager
def _answering(cluster: Cluster, mark: bytes) -> Iterator[None]:
    """Says `mark` to everybody who connects to this worker's address."""
    try:
        listener = _listen(*split_address(cluster.address))
    except OSError as error:
        raise ClusterError(
            f"worker {cluster.worker_index} must listen at {cluster.address}, but this port is in use by another "
            f"process ({error.strerror}): end that process, or give another port in TF_CONFIG."
        ) from None

    def answer() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), connection:
                connection.sendall(mark)

    thread = threading.Thread(target=answer, name="unisono-roll-call", daemon=True)
    thread.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        listener.close()
        thread.join(_ASK)


def _listen(host: str, port: int) -> socket.socket:
    """A socket at `port`: on loopback if that is the worker's address, else on every interface, as TensorFlow will."""
    if host in ("localhost", LOOPBACK):
        return socket.create_server((LOOPBACK, port), backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=128)
