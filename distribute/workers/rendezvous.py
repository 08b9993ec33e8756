"""All workers meet at worker 0, over plain sockets, before TensorFlow starts: it would wait for them for an hour."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import ipaddress
import json
import os
import selectors
import socket
import time
from typing import Any, NamedTuple

from ..environment import RUN, ClusterError
from .addresses import LOOPBACK, connect, free_ports, is_grpc, join_address, split_address
from .cluster import Cluster
from .places import Place
from .records import at_fatal_error, exit_for_another_attempt

_PAUSE = 0.1
_ASK = 2.0  # seconds for one exchange
_MOST_BYTES = 1 << 22
_MOST_NAMED = 16
_FIND_OUT = "find out why, or raise the timeout (launch --timeout, or the variable UNISONO_TIMEOUT)."
# With these a process sees the GPUs of its own task alone.
_BOUND = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")
_met: tuple[str, ...] = ()  # the workers whom this process has met by `meet`


class Peer(NamedTuple):
    """What all know of a worker: its address, and what tells its GPUs from those of others of its host."""

    address: str
    devices: str


def rendezvous(cluster: Cluster, timeout: float, program: str = "") -> None:
    """Waits until every worker of the cluster is present; `meet` has the arguments and the errors."""
    if cluster.workers != _met:
        job = f"{os.environ.get('SLURM_JOB_ID')} {os.environ.get('SLURM_RESTART_COUNT')}"
        meet(
            Place("TF_CONFIG", cluster.worker_index, cluster.num_workers, cluster.workers, job),
            timeout,
            program,
        )


def meet(place: Place, timeout: float, program: str = "") -> list[Peer]:
    """Waits until all processes of a launcher, or of TF_CONFIG, are present; returns what all know of each.

    Each tells worker 0 its port and the digest of its program ("" is not compared), and gets the same answer: the addresses,
    or the error of worker 0. Worker 0 waits `timeout` seconds, the others as long for worker 0, then as long as it waits.

    Raises:
        ClusterError: the port of this worker is taken, or a worker has another description of the cluster, another program,
            another run or the number of another worker.
        TimeoutError: workers, which it names, did not come in time.
    """
    global _met
    if not _met:
        at_fatal_error(exit_for_another_attempt)
    if not place.addresses:
        place = place._replace(addresses=_ask_mpi(place))
    host, port = split_address(place.addresses[0])
    complete = len(place.addresses) == place.size
    if complete:
        host, port = split_address(place.addresses[place.rank])
    elif place.rank:
        (port,) = free_ports(1)
    mine = {
        "unisono": _digest(os.environ.get(RUN) or place.job),
        "cluster": _digest(json.dumps([place.size, *place.addresses[1:]])),
        "program": program,
        "rank": place.rank,
        "port": port,
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }
    if any(os.environ.get(name, "none") != "none" for name in _BOUND):
        mine["devices"] += f" of task {place.rank}"
    try:
        listener = _listen(host, port)
    except OSError as error:
        cure = (
            "end that process, or give another port in TF_CONFIG"
            if complete
            else "set MASTER_PORT to a free port"
        )
        raise ClusterError(
            f"worker {place.rank} must listen at {join_address(host, port)}, but this port is in use by another process "
            f"({error.strerror}): {cure}."
        ) from None
    with listener:
        if place.rank == 0:
            peers = _Host(place, mine).gather(listener, timeout)
        else:
            peers = _ask(place, mine, timeout)
    _met = tuple(peer.address for peer in peers)
    return peers


class _Host:
    """Worker 0, which answers all workers once each has come. Every other connection is closed without a word."""

    def __init__(self, place: Place, mine: dict[str, Any]) -> None:
        self._place, self._mine = place, mine
        self._peers = {0: Peer(place.addresses[0], mine["devices"])}
        self._connections: dict[socket.socket, int] = {}  # to the workers that are present
        self._notes = ""

    def gather(self, listener: socket.socket, timeout: float) -> list[Peer]:
        """Waits for all workers, and answers them."""
        self._until = time.monotonic() + timeout
        with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
            selector.register(listener, selectors.EVENT_READ, None)
            try:
                while len(self._peers) < (self._place.size or 0):
                    left = self._until - time.monotonic()
                    if left <= 0:
                        raise TimeoutError(self._name_late(timeout))
                    for key, _ in selector.select(left):
                        if key.data is not None:
                            self._hear(selector, key.fileobj, *key.data)
                            continue
                        with contextlib.suppress(OSError):
                            connection, peer = listener.accept()
                            stack.enter_context(connection).setblocking(False)
                            visitor = bytearray(), peer[0].removeprefix("::ffff:")
                            selector.register(connection, selectors.EVENT_READ, visitor)
            except (ClusterError, TimeoutError) as error:
                self._tell_all({"error": str(error), "late": isinstance(error, TimeoutError)})
                raise
            peers = [self._peers[rank] for rank in range(len(self._peers))]
            self._tell_all({"peers": peers})
        return peers

    def _hear(self, selector: selectors.BaseSelector, connection: Any, heard: bytearray, host: str) -> None:
        """Reads what has arrived; a worker that ends its connection can come again."""
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(_MOST_BYTES)
        heard += data
        if data and b"\n" not in heard and len(heard) < _MOST_BYTES:
            return
        said = _parse(heard)
        if not data or connection in self._connections or not self._is_worker(said):
            self._peers.pop(self._connections.pop(connection, -1), None)
        elif said["unisono"] != self._mine["unisono"]:
            self._notes = f" A process of another run came from {host}."
            refusal = (
                "belongs to another run than this one, perhaps to one that has not ended yet: end that one."
            )
            _tell(connection, {"error": f"worker 0 at {self._place.addresses[0]} {refusal}"})
        else:
            self._connections[connection] = -1
            self._check(said, host)
            self._add(said, connection, host)
            return
        selector.unregister(connection)
        connection.close()

    def _is_worker(self, said: dict[str, Any]) -> bool:
        return all(type(said.get(name)) is type(value) for name, value in self._mine.items())

    def _check(self, said: dict[str, Any], host: str) -> None:
        """A ClusterError, which all get, where a process of this run cannot belong to its cluster."""
        rank, mine = said["rank"], self._mine
        where = f"worker {rank} at {host}"
        if said["cluster"] != mine["cluster"]:
            what = "TF_CONFIG" if len(self._place.addresses) > 1 else "cluster"
            raise ClusterError(
                f"{where} has a {what} with other workers than worker 0: give the same 'cluster' to all."
            )
        if rank in self._peers or not 0 < rank < (self._place.size or 0):
            number = "its own index in TF_CONFIG" if self._place.launcher == "TF_CONFIG" else "its own number"
            raise ClusterError(
                f"{where} says that it is worker {rank}, which another one is: give each {number}."
            )
        if "" not in (said["program"], mine["program"]) and said["program"] != mine["program"]:
            raise ClusterError(
                f"{where} runs another script than worker 0: every worker must run the same program."
            )

    def _add(self, said: dict[str, Any], connection: socket.socket, host: str) -> None:
        rank, place = said["rank"], self._place
        if len(place.addresses) == place.size:
            address = place.addresses[rank]
        else:
            here = connection.getsockname()[0].removeprefix("::ffff:")
            if host == here or ipaddress.ip_address(host.partition("%")[0]).is_loopback:
                host = split_address(place.addresses[0])[0]  # others know this machine by that name
            address = join_address(host, said["port"])
        self._peers[rank], self._connections[connection] = Peer(address, said["devices"]), rank
        _tell(connection, {"left": self._until - time.monotonic()})

    def _tell_all(self, answer: dict[str, Any]) -> None:
        for connection in self._connections:
            _tell(connection, answer)

    def _name_late(self, timeout: float) -> str:
        late = [rank for rank in range(self._place.size or 0) if rank not in self._peers]
        names = ", ".join(_name(self._place, rank) for rank in late[:_MOST_NAMED])
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        host, complete = split_address(self._place.addresses[0])[0], len(self._place.addresses) > 1
        hint = (
            "" if complete or _is_here(host) else f" Worker 0 is not on {host}: set MASTER_ADDR to its host."
        )
        return f"{names}{more} did not start within {timeout:g} s: {_FIND_OUT}{self._notes}{hint}"


def _ask(place: Place, mine: dict[str, Any], timeout: float) -> list[Peer]:
    """Another worker: tells worker 0 who it is, again until worker 0 has heard it, and waits for the answer."""
    until, problem = time.monotonic() + timeout, ""
    while (left := until - time.monotonic()) > 0:
        answer, heard = {}, bytearray()
        try:
            with connect(place.addresses[0], min(left, _ASK)) as connection:
                _tell(connection, mine)
                answer = _hear_line(connection, heard, time.monotonic() + min(left, _ASK))
                if "left" in answer:
                    answer = _hear_line(connection, heard, time.monotonic() + float(answer["left"]) + _ASK)
            problem = "what answers there is not worker 0 of this run, or has ended"
        except OSError as error:
            problem = str(error)
        if "peers" in answer:
            return [Peer(*map(str, peer)) for peer in answer["peers"]]
        if "error" in answer:
            raise (TimeoutError if answer.get("late") else ClusterError)(answer["error"])
        time.sleep(_PAUSE)
    raise TimeoutError(f"{_name(place, 0)} did not start within {timeout:g} s ({problem}): {_FIND_OUT}")


def _ask_mpi(place: Place) -> tuple[str, ...]:
    """The address of rank 0 by a broadcast of MPI, where mpi4py is installed for the same MPI; else a ClusterError."""
    with contextlib.suppress(ImportError, RuntimeError):
        world = importlib.import_module("mpi4py.MPI").COMM_WORLD if place.launcher == "mpirun" else None
        if world is not None and (world.rank, world.size) == (place.rank, place.size):
            mine = "" if place.rank else join_address(socket.gethostname(), free_ports(1)[0])
            return (world.bcast(mine, root=0),)
    raise ClusterError(str(place))


def _is_here(host: str) -> bool:
    """Whether this machine has the address."""
    with contextlib.suppress(OSError):
        family, *_, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind(address)
            return True
    return False


def _name(place: Place, rank: int) -> str:
    where = list(place.addresses[rank : rank + 1])
    task = [] if place.launcher == "TF_CONFIG" else [f"task {rank} of {place.size}, by {place.launcher}"]
    return f"worker {rank} ({', '.join(where + task)})"


def _tell(connection: socket.socket, said: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # whoever has gone notices itself
        connection.settimeout(_ASK)
        connection.sendall(json.dumps(said).encode() + b"\n")


def _hear_line(connection: socket.socket, heard: bytearray, until: float) -> dict[str, Any]:
    """The next line; {} where the peer closes the connection, speaks another protocol, or late. `heard` keeps the rest."""
    with contextlib.suppress(TimeoutError):
        while b"\n" not in heard and not is_grpc(heard) and len(heard) < _MOST_BYTES:
            connection.settimeout(max(_PAUSE, until - time.monotonic()))
            more = connection.recv(_MOST_BYTES)
            heard += more
            if not more or time.monotonic() > until:
                break
    line, _, heard[:] = heard.partition(b"\n")
    return _parse(line)


def _parse(data: bytes | bytearray) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(said := json.loads(data), dict):
            return said
    return {}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _listen(host: str, port: int) -> socket.socket:
    """A socket at `port`: on loopback if that is the worker's address, else on every interface, like TensorFlow."""
    if host in ("localhost", LOOPBACK):
        return socket.create_server((LOOPBACK, port), backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)
