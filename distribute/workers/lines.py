"""Lines of JSON over a socket: what workers say to each other before TensorFlow starts. Needs no TensorFlow."""

import contextlib
import json
import socket
import time
from typing import Any

ASK = 2.0  # seconds for one exchange
MOST_BYTES = 1 << 22
_LEAST = 0.1
_HTTP2_SETTINGS = 4


def tell(connection: socket.socket, said: dict[str, Any]) -> None:
    """Send a line, if the peer is still there."""
    with contextlib.suppress(OSError):  # whoever has gone notices itself
        connection.settimeout(ASK)
        connection.sendall(json.dumps(said).encode() + b"\n")


def hear_line(connection: socket.socket, heard: bytearray, until: float) -> dict[str, Any]:
    """Return the next line; {} if the peer is gone, late, or speaks another protocol. `heard` keeps the rest."""
    with contextlib.suppress(OSError):
        hear(connection, heard, until)
    line, _, heard[:] = heard.partition(b"\n")
    return parse(line)


def hear(connection: socket.socket, heard: bytearray, until: float) -> None:
    """Add the peer's data to `heard`, up to the end of a line or the greeting of gRPC.

    Data that has arrived is read even after `until`, a time of `time.monotonic()`, because this process may be late itself.
    """
    while b"\n" not in heard and not is_grpc(heard) and len(heard) < MOST_BYTES:
        connection.settimeout(max(_LEAST, until - time.monotonic()))
        more = connection.recv(MOST_BYTES)
        heard += more
        if not more or time.monotonic() > until:
            break


def is_grpc(data: bytes | bytearray) -> bool:
    """Return whether these are the first bytes of a gRPC server: an HTTP/2 SETTINGS frame (RFC 9113, 4.1 and 6.5)."""
    return len(data) >= 9 and data[3] == _HTTP2_SETTINGS and data[5:9] == b"\0\0\0\0"


def parse(data: bytes | bytearray) -> dict[str, Any]:
    """Return the object of a line; {} for anything else."""
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(said := json.loads(data), dict):
            return said
    return {}
