"""Addresses "host:port", the servers that listen there, and this process's connections to them. Needs no TensorFlow."""

import contextlib
import os
import pathlib
import random
import socket
import stat
from collections.abc import Iterator

from ..environment import ClusterError

LOOPBACK = "127.0.0.1"
_LOWEST_PORT = 10_000
_WAIT = 2.0  # seconds for a connection of this machine to itself


def split_address(address: str) -> tuple[str, int]:
    """Return the host, without the brackets of IPv6, and the port of "host:port"; raise a ValueError otherwise."""
    host, _, port = address.rpartition(":")
    bare = ":" in host and not (host[0] == "[" and host[-1] == "]")
    if not host or "@" in host or bare or not port.isdecimal() or not 0 < int(port) < 65536:
        example = "'[IPv6]:port'" if bare else "'host:port'"
        raise ValueError(f"an address must be {example} with a port from 1 to 65535. Received: {address!r}")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """Return the reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def connect(address: str, seconds: float) -> socket.socket:
    """Connect to an address, or raise an OSError; `seconds` is also the timeout of every later operation on it."""
    return socket.create_connection(split_address(address), seconds)


def listens(address: str, seconds: float) -> bool:
    """Return whether a process listens at an address; a stopped one does."""
    with contextlib.suppress(OSError), connect(address, seconds):
        return True
    return False


def open_listener(host: str, port: int) -> socket.socket:
    """Return a socket at `port`: on loopback if that is the worker's address, else on every interface, like TensorFlow."""
    if host in ("localhost", LOOPBACK):
        return socket.create_server((LOOPBACK, port), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)


def is_here(host: str) -> bool:
    """Return whether this machine has the address."""
    with contextlib.suppress(OSError):
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
            return True
    return False


def check_reaches_itself(address: str) -> None:
    """Raise a ClusterError if this process does not reach its own address: TensorFlow would wait for itself without end."""
    host, port = split_address(address)
    if is_here(host):
        return
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # unless this process listens there already
            stack.enter_context(open_listener(host, port))
        try:
            connect(address, _WAIT).close()
        except socket.gaierror:
            pass
        except OSError as error:
            raise ClusterError(
                f"worker 0 does not reach itself at {address} ({error}), where TensorFlow connects to it: name an address "
                "of its own host, or let the router in between send such connections back."
            ) from None


def identify_network() -> str:
    """Return what tells this machine's network from others, also where a router changes addresses in between."""
    with contextlib.suppress(OSError):
        boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/net').st_ino}"
    return socket.gethostname()


def claim(address: str) -> socket.socket | None:
    """Reserve an address until the socket is closed; None if another process has, or it belongs to another machine."""
    return _claim(f"launch {address}") if is_here(split_address(address)[0]) else None


def _claim(name: str) -> socket.socket | None:
    claimed = socket.socket(socket.AF_UNIX)
    try:
        claimed.bind(f"\0unisono {name}")  # a name without a file
    except OSError:
        claimed.close()
        return None
    return claimed


def end_connections(address: str) -> int:
    """End this process's TCP connections to an address, as if the peer had; return their number.

    TensorFlow waits on the connections of its gRPC runtime without end for a peer that hangs; this makes it raise
    there.
    """
    count = 0
    for connection in _connections(address):
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
            count += 1
    return count


def keep_alive(address: str, seconds: float) -> None:
    """Let the kernel end this process's connections to an address that is silent for so long.

    An idle connection is probed: a machine that has restarted does not answer on it, even if its server answers. One that
    waits for an acknowledgement would otherwise be given up after a quarter of an hour.
    """
    pause = max(1, int(seconds / 4))
    for connection in _connections(address):
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, pause)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, pause)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * seconds))


def _connections(address: str) -> Iterator[socket.socket]:
    """Yield a duplicate of each socket of this process that is connected to an address, whoever opened it."""
    try:
        found = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)
    except OSError:
        return
    wanted = {(str(place[0]), place[1]) for *_, place in found}
    for name in os.listdir("/proc/self/fd"):
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


def why_taken(port: int) -> str | None:
    """Return why no server of this machine can open a port, in the system's words; None: it can."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def free_ports(count: int) -> list[int]:
    """Return `count` different free loopback ports that this function has returned to no other process.

    They are below the kernel's range for outgoing connections: a restarted server must not find its port taken by a
    connection.
    """
    with contextlib.ExitStack() as stack:
        ports: list[int] = []
        for _ in range(100 * count):
            if len(ports) == count:
                return ports
            candidate = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):
                candidate.bind((LOOPBACK, _port_to_try()))
                port = candidate.getsockname()[1]
                if (claimed := _claim(f"port {port}")) is not None:
                    claimed.detach()  # stays open until this process ends
                    ports.append(port)
        raise OSError(f"No {count} free ports were found on {LOOPBACK}: end programs that listen there.")


def _port_to_try() -> int:
    """Return a random port below the kernel's own range; 0 (any) where that leaves few."""
    try:
        first = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 0
    return random.SystemRandom().randrange(_LOWEST_PORT, first) if first > 2 * _LOWEST_PORT else 0
