"""This process's own TCP connections to an address, whoever opened them: ended, or watched by the kernel.

TensorFlow gives no access to the connections of its gRPC runtime, and waits on them without end for a peer that hangs.
Shutting one down makes TensorFlow raise wherever it waits.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator

from .addresses import split_address


def end_connections(address: str) -> int:
    """Ends this process's TCP connections to an address, as if the other side had; returns their number."""
    count = 0
    for connection in _connections(address):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def keep_alive(address: str, seconds: float) -> None:
    """Has the kernel ask along this process's connections to an address whether the other side still knows of them.

    For a machine that was started again and whose server is there again: it answers, but not on these connections.
    """
    pause = max(1, int(seconds / 4))
    for connection in _connections(address):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", pause), ("TCP_KEEPINTVL", pause), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _connections(address: str) -> Iterator[socket.socket]:
    """A second handle on each socket of this process that is connected to an address, whoever opened it."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except OSError:
        return
    wanted = {(str(place[0]), place[1]) for *_, place in found}
    try:
        names = os.listdir("/dev/fd")  # there is none on Windows
    except OSError:
        return
    for name in names:
        try:
            handle = os.dup(int(name))
        except OSError:
            continue
        if not stat.S_ISSOCK(os.fstat(handle).st_mode):
            os.close(handle)
            continue
        with socket.socket(fileno=handle) as connection, contextlib.suppress(OSError):
            peer = connection.getpeername()
            if isinstance(peer, tuple) and (str(peer[0]).removeprefix("::ffff:"), peer[1]) in wanted:
                yield connection
