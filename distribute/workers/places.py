"""The place of this process among those that a launcher started: rank, size, addresses. Needs no TensorFlow."""

import hashlib
import os
import re
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from ..environment import ELASTIC, ClusterError
from .addresses import LOOPBACK, join_address, split_address
from .launchers import LEVELS, Column, Environ, Launcher, list_launchers

_FIRST_PORT, _PORTS = 20_000, 10_000  # below the kernel's range for outgoing connections
_warned: set[str] = set()


class Machines(NamedTuple):
    """How the workers are divided among machines; those of a cluster of a fixed size count as one machine."""

    fewest: int  # workers without which there is no run
    each: int  # workers of one machine
    name: str = ""  # of this one; "" with a fixed size


class Place(NamedTuple):
    """This process as one of several that a launcher started, without TF_CONFIG."""

    launcher: str
    rank: int
    size: int | None  # None: the launcher does not tell how many there are
    addresses: tuple[str, ...]  # "host:port" of all; or of rank 0 alone, where all meet; or (): not known
    job: str  # what tells this run from others
    level: str = ""
    variables: str = ""  # with their values
    elastic: Machines | None = None  # of an elastic launch, whose workers get their numbers when they meet
    announced: int = 0  # how many processes there are, of which none has a number; 0: this one has

    def __str__(self) -> str:
        """Return the problem and the fix."""
        rank, size = self.rank, self.size
        if self.announced:
            return (
                f"The variables of {self.launcher} ({self.variables}) announce {self.announced} processes, but do not say "
                f"which this one is, so each trains a separate model: start them by {self.launcher}, or set RANK to the "
                "number of this process, WORLD_SIZE to how many there are, and MASTER_ADDR to the host of number 0; set "
                "TF_CONFIG={} if this process trains alone."
            )
        among = f"task {rank} of {size}" if size else f"number {rank} of several, or of one"
        if size is None:
            fix = "set WORLD_SIZE to their number and MASTER_ADDR to the host of number 0, the same for all, and "
        elif self.addresses:
            fix = ""
        else:
            fix = "set MASTER_ADDR to the host of task 0 and MASTER_PORT to a free port there, the same for all, and "
        return (
            f"{self.launcher} started this process as {among} ({self.variables}) without TF_CONFIG, so each task trains a "
            f"separate model: {fix}create the model under unisono.distribute.auto_strategy(); set TF_CONFIG={{}} if the "
            "models are meant to be independent."
        )


class Peer(NamedTuple):
    """What all know of a worker: its address, and what tells its GPUs from those of others on its host."""

    address: str
    devices: str


def read_place(environ: Environ | None = None) -> Place | None:
    """Return this process among those that a launcher started; None: it was started alone, or has TF_CONFIG.

    The innermost launcher counts. Raise a `ClusterError` if two of one level assign different numbers to this process, or
    one a number that is too high.
    """
    environ = os.environ if environ is None else environ
    if "TF_CONFIG" in environ:
        return None
    rows = list_launchers(environ)
    found = [place for row in rows if (place := _read_row(row, environ)) is not None]
    sized = sorted((place for place in found if (place.size or 0) > 1), key=_depth)
    if not sized:  # one task is one task, whatever numbers the machines around it
        known = [_depth(place) for place in found if place.size == 1]
        unknown = [
            place for place in found if place.size is None and not any(each < _depth(place) for each in known)
        ]
        return unknown[0] if unknown else _read_announced(rows, environ, found)
    inner = next((place for place in sized if place.rank < (place.size or 0)), None)
    if inner is None:
        raise ClusterError(
            f"{sized[0].launcher} says that this process is task {sized[0].rank} of {sized[0].size} "
            f"({sized[0].variables}), but tasks are numbered from 0: correct the variables, or set TF_CONFIG."
        )
    same = [place for place in sized if (place.rank, place.size) == (inner.rank, inner.size)]
    for other in sized:
        if other.level == inner.level and other.rank < (other.size or 0) and other not in same:
            raise ClusterError(
                f"{inner.launcher} says that this process is task {inner.rank} of {inner.size} ({inner.variables}), and "
                f"{other.launcher} that it is task {other.rank} of {other.size} ({other.variables}): unset the variables of "
                "the one that did not start it, or set TF_CONFIG."
            )
    # `srun --mpi` sets variables of MPI too.
    return next((place for place in same if place.addresses), same[-1])


def warn_of_unknown_size(place: Place) -> None:
    """Warn, once, that this process may be one of several."""
    if str(place) not in _warned:
        _warned.add(str(place))
        warnings.warn(str(place), stacklevel=3)


def _read_row(row: Launcher, environ: Environ) -> Place | None:
    if not (text := _read(row.rank, environ)):
        return None
    size = _number(_read(row.size, environ))
    if size is None and "RANK" not in environ:  # WORLD_SIZE next to RANK counts others
        size = _number(environ.get("WORLD_SIZE", ""))
    rank = _number(text)
    if size is not None and size > 1 and rank is None:
        raise ClusterError(
            f"{row.name}: the number of this process must be a whole number from 0. Received: {text!r}"
        )
    if rank is None or size == 0:
        return None
    if rank and _number(_read(row.size, environ)) == 1:  # it is not the first of one
        size = None
    variables = _show(row, environ) or "as its variables say"
    job = " ".join(environ.get(name, "") for name in row.job.split())
    addresses = () if size in (None, 1) else _read_addresses(row, environ, size, job)
    words = environ.get(ELASTIC, "").split() if row.name == "launch" else []
    elastic = Machines(int(words[0]), int(words[1]), words[2]) if words else None
    return Place(row.name, rank, size, addresses, job, row.level, variables, elastic)


def _read_announced(rows: list[Launcher], environ: Environ, found: list[Place]) -> Place | None:
    """Return a place without a number if a size is set, but no rank there or further in: `salloc` without `srun`."""
    for row in rows:
        size = _number(_read(row.size, environ)) or 0
        numbered = (
            found if row.size == "WORLD_SIZE" else [each for each in found if _depth(each) <= _depth(row)]
        )
        if size > 1 and not numbered and not _read(row.rank, environ):
            shown = _show(row, environ) or "of the job"
            return Place(row.name, 0, None, (), "", row.level, shown, announced=size)
    return None


def _depth(numbered: Place | Launcher) -> int:
    """Return how far out something is numbered; the innermost launcher counts."""
    return LEVELS.index(numbered.level)


def _show(row: Launcher, environ: Environ) -> str:
    names = " ".join(column for column in (row.rank, row.size) if isinstance(column, str)).split()
    return ", ".join(f"{n}={environ[n]}" for n in names if n in environ)


def _read_addresses(row: Launcher, environ: Mapping[str, str], size: int, job: str) -> tuple[str, ...]:
    """Return the launcher's addresses; the port is MASTER_PORT, its own, or one that all derive from the job."""
    hosts = [each for each in re.split(r"[,\s]+", _read(row.host, environ)) if each]
    parts = [_split_host(host) for host in hosts]
    if len(parts) not in (0, 1, size) and all(port for _, port in parts):
        raise ClusterError(
            f"{row.name} names {len(parts)} addresses for {size} processes: name one for each."
        )
    if len(parts) != size or not all(port for _, port in parts):
        host, port = parts[0] if parts else ("", "")
        if row.level != "cluster":
            given, its_port = _split_host(environ.get("MASTER_ADDR", "").strip())
            host, port = given or host, its_port or environ.get("MASTER_PORT") or port
            if (
                environ.get("MASTER_PORT", "").isdecimal()
                and environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            ):
                port = str(int(port) + 1)  # torchrun itself listens at MASTER_PORT
        if not host and _read(row.local_size, environ) == str(size):
            host = LOOPBACK  # all are on this machine
        derived = _FIRST_PORT + int(hashlib.sha256(job.encode()).hexdigest()[:8], 16) % _PORTS
        parts = [(host, port or str(derived))] if host else []
    try:
        return tuple(
            join_address(*split_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}"))
            for host, port in parts
        )
    except ValueError as error:
        raise ClusterError(f"{row.name}: {error}. Set MASTER_ADDR and MASTER_PORT for all.") from None


def _split_host(text: str) -> tuple[str, str]:
    """Return the host and the port, "" without one; an IPv6 address itself contains colons."""
    host, _, port = text.rpartition(":") if text.count(":") == 1 or "]:" in text else (text, "", "")
    return host.strip("[]"), port


def _read(column: Column, environ: Environ) -> str:
    if callable(column):
        return column(environ)
    for name in column.split():
        if value := environ.get(name):
            return value
    return ""


def _number(text: str) -> int | None:
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) < 10 else None
