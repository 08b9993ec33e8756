"""All workers meet at worker 0, over plain sockets, before TensorFlow starts, which would wait for them for an hour."""

import contextlib
import hashlib
import json
import os
import selectors
import socket
import sys
import time
from typing import Any

from ...compat.versions import show_versions
from ..environment import NO_PLACE, RESTART, RUN, SINCE, ClusterError
from .addresses import (
    check_reaches_itself,
    connect,
    free_ports,
    identify_network,
    is_here,
    join_address,
    open_listener,
    split_address,
)
from .cluster import Cluster
from .lines import ASK, MOST_BYTES, hear_line, parse, tell
from .newcomers import hear_newcomers
from .places import Machines, Peer, Place
from .records import at_fatal_error, exit_for_another_attempt

_PAUSE = 0.1
_AGAIN = 1.0  # seconds between two questions of a machine that waits for its place
_MOST_NAMED = 16
_FIND_OUT = "find out why, or raise the timeout (launch --timeout, or the variable UNISONO_TIMEOUT)."
# With these a process sees the GPUs of its own task alone.
_BOUND = ("SLURM_GPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_GPU_BIND")
Seat = tuple[str, int]  # a machine, and the number of a worker on it
_met: tuple[str, ...] = ()  # the workers whom this process has met by `meet`


def rendezvous(cluster: Cluster, timeout: float, program: str = "") -> None:
    """Wait until every worker of the cluster is present; `meet` has the arguments and the errors."""
    if cluster.workers != _met:
        job = f"{os.environ.get('SLURM_JOB_ID')} {os.environ.get('SLURM_RESTART_COUNT')}"
        meet(
            Place("TF_CONFIG", cluster.worker_index, cluster.num_workers, cluster.workers, job),
            timeout,
            program,
        )


def meet(place: Place, timeout: float, program: str = "") -> tuple[int, list[Peer]]:
    """Wait until all processes of a launcher, or of TF_CONFIG, are present; return this one's number, and each's `Peer`.

    Each sends worker 0 its port and the digest of its program ("" is not compared), and gets the same answer: the addresses,
    or the error of worker 0. Worker 0 waits `timeout` seconds; the others wait as long for it, then as long as it waits.
    In an elastic launch worker 0 gives the others their numbers, and a machine that comes too late waits for the next start.

    Raises:
        ClusterError: the port of this worker is taken, or a worker has a different description of the cluster, program or
            run, or the number of another worker.
        TimeoutError: workers, which it names, did not come in time.
        SystemExit: with NO_PLACE, the same in an elastic launch.
    """
    global _met
    if not _met and RESTART not in os.environ:  # a launcher of ours restarts the workers itself
        at_fatal_error(exit_for_another_attempt)
    machines = place.elastic or Machines(place.size or 0, place.size or 0)
    host, port = split_address(place.addresses[0])
    if complete := len(place.addresses) == place.size:
        host, port = split_address(place.addresses[place.rank])
    elif place.rank:
        (port,) = free_ports(1)
    mine = {
        "unisono": _digest(os.environ.get(RUN) or place.job),
        "cluster": _digest(json.dumps([place.size, *machines[:2], *place.addresses[1:]])),
        "program": program,
        "versions": show_versions(),
        "machine": machines.name,
        "rank": place.rank % machines.each,  # in an elastic launch, on its machine
        "port": port,
        "network": identify_network(),
        "devices": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }
    if any(os.environ.get(name, "none") != "none" for name in _BOUND):
        mine["devices"] += f" of task {place.rank}"
    try:
        listener = open_listener(host, port)
    except OSError as error:
        cures = {"launch": "pass a free port in --rdzv-endpoint"}
        cure = cures.get(place.launcher, "set MASTER_PORT to a free port")
        cure = "stop that process, or set another port in TF_CONFIG" if complete else cure
        raise ClusterError(
            f"worker {place.rank} must listen at {join_address(host, port)}, but this port is in use by another process "
            f"({error.strerror}): {cure}."
        ) from None
    try:
        with listener:
            if place.rank:
                rank, peers = _ask(place, mine, timeout)
            else:
                rank, peers = 0, _Host(place, machines, mine).gather(listener, timeout)
                if machines.name:
                    hear_newcomers(listener.dup(), mine, full=len(peers) == place.size)
    except TimeoutError as error:
        if not machines.name:
            raise
        print(f"unisono: {error}", file=sys.stderr, flush=True)
        raise SystemExit(NO_PLACE) from None
    _met = tuple(peer.address for peer in peers)
    return rank, peers


class _Host:
    """Worker 0, which answers all workers once each has come. Every other connection is closed without a word."""

    def __init__(self, place: Place, machines: Machines, mine: dict[str, Any]) -> None:
        self._place, self._machines, self._mine = place, machines, mine
        if machines.name:  # newcomers are heard at the endpoint, while TensorFlow listens elsewhere
            (mine["port"],) = free_ports(1)
        address = join_address(split_address(place.addresses[0])[0], mine["port"])
        self._peers = {_seat_of(mine): Peer(address, mine["devices"])}
        self._connections: dict[socket.socket, Seat | None] = {}  # to the workers that are present
        self._notes = ""

    def gather(self, listener: socket.socket, timeout: float) -> list[Peer]:
        """Wait for all workers, and answer them."""
        self._until = time.monotonic() + timeout
        with selectors.DefaultSelector() as self._selector, contextlib.ExitStack() as stack:
            self._selector.register(listener, selectors.EVENT_READ, None)
            try:
                while not self._is_complete():
                    if (left := self._until - time.monotonic()) <= 0:
                        raise TimeoutError(self._name_late(timeout))
                    for key, _ in self._selector.select(left):
                        if key.data is not None:
                            self._hear(key.fileobj, *key.data)
                            continue
                        with contextlib.suppress(OSError):
                            connection, peer = listener.accept()
                            stack.enter_context(connection).setblocking(False)
                            visitor = bytearray(), peer[0].removeprefix("::ffff:")
                            self._selector.register(connection, selectors.EVENT_READ, visitor)
                check_reaches_itself(self._peers[_seat_of(self._mine)].address)
            except (ClusterError, TimeoutError) as error:
                for connection in self._connections:
                    tell(connection, {"error": str(error), "late": isinstance(error, TimeoutError)})
                raise
            seats = self._seats()
            peers = [self._peers[seat] for seat in seats]
            for connection, seat in self._connections.items():
                placed = {"peers": peers, "rank": seats.index(seat)} if seat in seats else {"wait": True}
                tell(connection, placed)
        return peers

    def _is_complete(self) -> bool:
        """Return whether enough have joined and are still there."""
        enough = self._place.size or 0 if time.monotonic() < self._until else self._machines.fewest
        if len(self._seats()) < enough:
            return False
        self._drop_silent({*self._connections})
        return len(self._seats()) >= enough

    def _drop_silent(self, connections: set[socket.socket]) -> None:
        """Ask workers whether they are there, as a machine that dies or a stopped process leaves its connections open."""
        for connection in connections:
            tell(connection, {"ready": True})
        until = time.monotonic() + ASK
        for connection in connections:
            if "ready" not in hear_line(connection, bytearray(), until) and (
                seat := self._connections[connection]
            ):
                self._notes += f" Worker {seat[1]} at {self._peers[seat].address} joined, then fell silent."
                self._drop(connection)

    def _drop(self, connection: socket.socket) -> None:
        if (seat := self._connections.pop(connection, None)) is not None:
            self._peers.pop(seat, None)
        self._selector.unregister(connection)
        connection.close()

    def _seats(self) -> list[Seat]:
        """Return the seats in the order of ranks: machine after machine, this one first, those that are complete."""
        each = range(self._machines.each)
        whole = [[(name, i) for i in each] for name in dict.fromkeys(name for name, _ in self._peers)]
        seats = [seat for machine in whole if all(map(self._peers.get, machine)) for seat in machine]
        return seats[: self._place.size] if _seat_of(self._mine) in seats else []

    def _hear(self, connection: Any, heard: bytearray, host: str) -> None:
        """Read what has arrived; a worker that ends its connection can come again."""
        if connection.fileno() < 0:  # dropped by now
            return
        data = b""
        with contextlib.suppress(OSError):
            data = connection.recv(MOST_BYTES)
        heard += data
        if data and b"\n" not in heard and len(heard) < MOST_BYTES:
            return
        said = {"versions": "an older Unisono", **parse(heard)}
        complete = all(type(said.get(name)) is type(value) for name, value in self._mine.items())
        if data and complete and connection not in self._connections:
            if said["unisono"] == self._mine["unisono"]:
                self._connections[connection] = None
                self._check(said, host)
                self._add(said, connection, host)
                return
            self._notes = f" A process of another run connected from {host}."
            other = f"worker 0 at {self._place.addresses[0]} belongs to a different run, which may still be running"
            tell(connection, {"error": f"{other}: stop that run."})
        self._drop(connection)

    def _check(self, said: dict[str, Any], host: str) -> None:
        """Raise a ClusterError, which all get, if a process of this run cannot belong to its cluster."""
        rank, mine = said["rank"], self._mine
        where = f"worker {rank} of the machine at {host}" if said["machine"] else f"worker {rank} at {host}"
        if said["cluster"] != mine["cluster"]:
            what = "TF_CONFIG" if len(self._place.addresses) > 1 else "cluster"
            raise ClusterError(f"{where} has a {what} that lists different workers: set the same on all.")
        self._drop_silent({each for each, seat in self._connections.items() if seat == _seat_of(said)})
        if _seat_of(said) in self._peers or not 0 <= rank < self._machines.each:
            number = "its own index in TF_CONFIG" if self._place.launcher == "TF_CONFIG" else "its own number"
            raise ClusterError(
                f"{where} says that it is worker {rank}, as another process does: set {number} for each."
            )
        if "" not in (said["program"], mine["program"]) and said["program"] != mine["program"]:
            raise ClusterError(f"{where} runs a different script from worker 0: start the same one on all.")
        if said["versions"] != mine["versions"]:
            own = f"worker 0 at {self._place.addresses[0]} has {mine['versions']}"
            raise ClusterError(
                f"{where} has {said['versions']}, and {own}: install the same versions on all."
            )

    def _add(self, said: dict[str, Any], connection: socket.socket, host: str) -> None:
        rank, place = said["rank"], self._place
        if len(place.addresses) == place.size:
            address = place.addresses[rank]
        else:
            if said["network"] == self._mine["network"]:
                host = split_address(place.addresses[0])[0]  # others know this machine by that name
            address = join_address(host, said["port"])
        seat = _seat_of(said)
        self._peers[seat], self._connections[connection] = Peer(address, said["devices"]), seat
        tell(connection, {"left": self._until - time.monotonic()})

    def _name_late(self, timeout: float) -> str:
        if self._machines.name:
            return (
                f"{len(self._peers)} of at least {self._machines.fewest} workers ({self._machines.each} on a machine) "
                f"joined within {timeout:g} s: {_FIND_OUT}{self._notes}"
            )
        late = [rank for rank in range(self._place.size or 0) if ("", rank) not in self._peers]
        names = ", ".join(_name(self._place, rank) for rank in late[:_MOST_NAMED])
        more = f" and {len(late) - _MOST_NAMED} more" if len(late) > _MOST_NAMED else ""
        host = split_address(self._place.addresses[0])[0]
        elsewhere = len(self._place.addresses) == 1 and not is_here(host)
        hint = f" Worker 0 is not on {host}: set MASTER_ADDR to its host." * elsewhere
        return f"{names}{more} did not start within {timeout:g} s: {_FIND_OUT}{self._notes}{hint}"


def _seat_of(said: dict[str, Any]) -> Seat:
    return said["machine"], said["rank"]


def _ask(place: Place, mine: dict[str, Any], timeout: float) -> tuple[int, list[Peer]]:
    """Tell worker 0 who this worker is, repeatedly until worker 0 has heard it, and wait for the answer."""
    lost = float(os.environ.get(SINCE, "inf")) if place.elastic else time.time()
    until = time.monotonic() + max(ASK, timeout - max(0.0, time.time() - lost))
    problem, waits = "", False
    while (left := until - time.monotonic()) > 0:
        answer, heard = {}, bytearray()
        try:
            with connect(place.addresses[0], min(left, ASK)) as connection:
                tell(connection, mine)
                answer = hear_line(connection, heard, time.monotonic() + min(left, ASK))
                if "left" in answer:
                    end = time.monotonic() + float(answer["left"]) + ASK
                    while "ready" in (answer := hear_line(connection, heard, end)):
                        tell(connection, answer)
            problem = "what answers there is not worker 0 of this run, or has exited"
        except OSError as error:
            problem = str(error)
        if "peers" in answer:
            return int(answer["rank"]), [Peer(*map(str, peer)) for peer in answer["peers"]]
        if "error" in answer:
            raise (TimeoutError if answer.get("late") else ClusterError)(answer["error"])
        if "wait" in answer:
            if not waits:
                print(f"unisono: waiting until the run at {place.addresses[0]} restarts.", flush=True)
            waits, until = True, time.monotonic() + timeout
        time.sleep(_AGAIN if waits else _PAUSE)
    raise TimeoutError(f"{_name(place, 0)} did not start within {timeout:g} s ({problem}): {_FIND_OUT}")


def _name(place: Place, rank: int) -> str:
    task = () if place.launcher == "TF_CONFIG" else (f"task {rank} of {place.size}, by {place.launcher}",)
    return f"worker {rank} ({', '.join(place.addresses[rank : rank + 1] + task)})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
