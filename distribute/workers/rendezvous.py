"""Waits until all workers are present, over plain sockets: TensorFlow would wait for them for an hour."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

from ..environment import RUN
from .addresses import LOOPBACK, connect, is_grpc, read_line, split_address
from .cluster import Cluster, ClusterError

_HELLO = "unisono"
_SEEN = b"seen\n"
_UNSEEN = b"unseen\n"
_PAUSE = 0.1
_ASK = 2.0  # seconds for one exchange


@dataclasses.dataclass(frozen=True)
class _Identity:
    """The identity of a worker. `cluster`, `run` and `program` are digests, "-" where there is nothing to compare."""

    cluster: str
    run: str
    program: str
    index: int

    def line(self) -> bytes:
        return f"{_HELLO} {self.cluster} {self.run} {self.program} {self.index}\n".encode()

    @staticmethod
    def read(line: bytes) -> _Identity | None:
        """The identity in a line; None where the line has another form."""
        parts = line.decode("ascii", "replace").split()
        if len(parts) != 5 or parts[0] != _HELLO or not parts[4].isdecimal() or not line.endswith(b"\n"):
            return None
        return _Identity(parts[1], parts[2], parts[3], int(parts[4]))


def rendezvous(cluster: Cluster, timeout: float, program: str = "") -> None:
    """Waits until every worker of the cluster is present, at most `timeout` seconds in all.

    `program` is a digest of the program that every worker must run; "" is not compared. It is a `ClusterError` if this
    worker's port is taken, or a peer has another description of the cluster or another program, belongs to another run, or
    has another worker's number. The TimeoutError names the workers that are not present in time.
    """
    attempt = _Rendezvous(cluster, program, time.monotonic() + timeout)
    with attempt.answering():
        asking = [threading.Thread(target=attempt.ask, args=(peer,), daemon=True) for peer in attempt.peers]
        for thread in asking:
            thread.start()
        try:
            attempt.wait(timeout)
        finally:
            attempt.over.set()
            for thread in asking:
                thread.join(_PAUSE)


class _Rendezvous:
    """Owns the state of each peer; `peers` maps numbers to addresses. Every wait ends at `until`.

    A worker leaves its port to TensorFlow's server once it has seen each peer and each peer has seen it. So a peer that
    answers with gRPC's greeting has gone ahead only if it had been seen before.
    """

    def __init__(self, cluster: Cluster, program: str, until: float) -> None:
        run = (
            os.environ.get(RUN) or f"{os.environ.get('SLURM_JOB_ID')} {os.environ.get('SLURM_RESTART_COUNT')}"
        )
        self._identity = _Identity(
            _digest(json.dumps(cluster.workers)), _digest(run), program[:16] or "-", cluster.worker_index
        )
        self._address, self._until = cluster.address, until
        self.peers = {i: a for i, a in enumerate(cluster.workers) if i != cluster.worker_index}
        self._changed = threading.Condition()
        self._seen: set[int] = set()
        self._sees_us: set[int] = set()
        self._failure: ClusterError | None = None
        self.over = threading.Event()

    def wait(self, timeout: float) -> None:
        """Returns once each peer and this worker have seen each other."""
        with self._changed:
            while len(self._sees_us) < len(self.peers) and self._failure is None:
                if not self._changed.wait(max(0.0, self._until - time.monotonic())):
                    break
            failure, seen, sees_us = self._failure, set(self._seen), set(self._sees_us)
        if failure is not None:
            # The others must learn of it too.
            self.over.wait(max(0.0, min(_ASK, self._until - time.monotonic())))
            raise failure

        def all_but(found: set[int]) -> str:
            return ", ".join(f"worker {i} ({a})" for i, a in self.peers.items() if i not in found)

        if late := all_but(seen):
            raise TimeoutError(
                f"{late} did not start within {timeout:g} s: find out why, or raise the timeout "
                f"(launch --timeout, or the variable UNISONO_TIMEOUT)."
            )
        if deaf := all_but(sees_us):
            raise TimeoutError(
                f"{deaf} started, but could not reach this worker (worker {self._identity.index} at "
                f"{self._address}) within {timeout:g} s: allow the connection in the firewalls between them."
            )

    def ask(self, index: int) -> None:
        """Contacts a peer until it and this worker have seen each other. Runs in a thread."""
        while not self.over.is_set() and time.monotonic() < self._until:
            with contextlib.suppress(OSError):
                if self._asked(index):
                    with self._changed:
                        self._sees_us.add(index)
                        self._changed.notify_all()
                    return
            self.over.wait(_PAUSE)

    def _asked(self, index: int) -> bool:
        """One exchange; returns whether the peer has seen this worker."""
        until = min(self._until, time.monotonic() + _ASK)
        with connect(self.peers[index], max(0.1, until - time.monotonic())) as connection:
            answer = read_line(connection, until)
            if is_grpc(answer):
                # Only a peer that was seen before is known to be the one that went ahead.
                return index in self._seen
            identity = _Identity.read(answer)
            if identity is None:
                return False
            connection.sendall(self._identity.line())
            self._compare(identity, f"worker {index} at {self.peers[index]}", index)
            with self._changed:
                self._seen.add(index)
            return read_line(connection, until) == _SEEN

    def _answer(self, connection: socket.socket, *_: object) -> None:
        """Answers one peer. Runs in a thread."""
        until = time.monotonic() + _ASK
        with contextlib.suppress(OSError):
            connection.settimeout(_ASK)
            connection.sendall(self._identity.line())
            identity = _Identity.read(read_line(connection, until))
            if identity is not None:
                self._compare(identity, f"worker {identity.index}", identity.index)
                connection.sendall(_SEEN if identity.index in self._seen else _UNSEEN)

    def _compare(self, theirs: _Identity, peer: str, index: int) -> None:
        """Ends the rendezvous where a peer has the wrong identity."""
        ours = self._identity
        me = f"this one (worker {ours.index})"
        failure = ""
        if theirs.cluster != ours.cluster:
            failure = f"{peer} has a TF_CONFIG with other workers than {me}: give the same 'cluster' to all."
        elif theirs.run != ours.run:
            failure = f"{peer} belongs to another run than {me}, perhaps to one that has not ended yet: end that one."
        elif theirs.index != index or theirs.index == ours.index:
            failure = f"{peer} says that it is worker {theirs.index}: give each its own index in TF_CONFIG."
        elif theirs.program != ours.program and "-" not in (theirs.program, ours.program):
            failure = f"{peer} runs another script than {me}: every worker must run the same program."
        if failure:
            with self._changed:
                self._failure = self._failure or ClusterError(failure)
                self._changed.notify_all()

    @contextlib.contextmanager
    def answering(self) -> Iterator[None]:
        """Answers every process that connects to this worker's address."""
        handler: Any = self._answer  # socketserver calls it like a class
        server = socketserver.ThreadingTCPServer(("", 0), handler, bind_and_activate=False)
        server.daemon_threads = True
        server.socket.close()
        try:
            server.socket = _listen(*split_address(self._address))
        except OSError as error:
            raise ClusterError(
                f"worker {self._identity.index} must listen at {self._address}, but this port is in use by another "
                f"process ({error.strerror}): end that process, or give another port in TF_CONFIG."
            ) from None
        thread = threading.Thread(
            target=server.serve_forever, args=(_PAUSE,), name="unisono-rendezvous", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            server.server_close()
            thread.join(_ASK)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _listen(host: str, port: int) -> socket.socket:
    """A socket at `port`: on loopback if that is the worker's address, else on every interface, like TensorFlow."""
    if host in ("localhost", LOOPBACK):
        return socket.create_server((LOOPBACK, port), backlog=128)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=128, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=128)
