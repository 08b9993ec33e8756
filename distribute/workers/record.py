"""The record that a process of a cluster leaves of itself: its last sign of life, where it is, and its own error.

One small JSON file for each process, `HOST-PID.json`, in the folder that the variable UNISONO_RECORDS names; replaced as a
whole, so that a reader sees the old one or the new one. `python -m unisono launch` makes the folder and reads it; where
something else starts the workers, people set the variable and read the files. Needs no TensorFlow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import socket
import stat
from pathlib import Path
from typing import Any

_MOST_BYTES = 1 << 16
_MOST_TEXT = 2000
_MOST_NAMED = 32
_MOST_NAME = 60
_TYPES: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}


@dataclasses.dataclass(frozen=True)
class ErrorRecord:
    """An error that ended a process's program.

    Attributes:
        kind: name of its class.
        text: its message; a long one without its middle.
        place: the innermost line of the user's own code, "" where there is none.
        time: float; `time.time()`.
        consequence: whether it speaks of another process that was lost or failed.
        lost: names of those it says were lost, see `Accusation`.
        told_by: names of those from which it says that the error came.
    """

    kind: str
    text: str
    place: str
    time: float
    consequence: bool = False
    lost: tuple[str, ...] = ()
    told_by: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Record:
    """What a process last said of itself.

    Attributes:
        task: "worker 1", "ps 0", ...; "" where it belongs to no cluster.
        pid: int.
        alive: float; `time.time()` of this record; a process that lives writes one every second.
        position: where training is, for instance "epoch 2, step 17"; "" before the first `fit`.
        meetings: int; the meeting points with its peers to which it has come.
        waits: whether it is at one of them now.
        since: float; `time.time()` since which `meetings` and `waits` are what they are.
        place: the line of the user's own code at which its main thread is; "" where that is not known.
        error: what ended its program, or None.
        ended: whether its program has ended in order: by its last line or by `sys.exit`.
    """

    task: str
    pid: int
    alive: float
    position: str = ""
    meetings: int = 0
    waits: bool = False
    since: float = 0.0
    place: str = ""
    error: ErrorRecord | None = None
    ended: bool = False


def short(text: str, most: int = _MOST_TEXT) -> str:
    """`text`; if it is longer than `most` characters, without its middle.

    >>> short("0123456789", 7)
    '012 ... 789'
    """
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-(most // 2) :]}"


def path_of(folder: Path, pid: int) -> Path:
    """Where the process `pid` of this machine keeps its record."""
    return folder / f"{socket.gethostname()}-{pid}.json"


def write(folder: Path, record: Record) -> None:
    """Replaces the record of this process.

    Raises:
        OSError: the file system refused.
    """
    path = path_of(folder, record.pid)
    part = path.with_suffix(".part")
    content = {name: _bounded(value) for name, value in dataclasses.asdict(record).items()}
    part.write_text(json.dumps(content), "utf-8")
    os.replace(part, path)


def _bounded(value: Any) -> Any:
    """A value of a record with its texts and lists cut to what a reader takes."""
    if isinstance(value, dict):
        return {name: _bounded(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [short(each, _MOST_NAME) for each in value[:_MOST_NAMED]]
    return short(value) if isinstance(value, str) else value


def read(folder: Path, pid: int) -> Record | None:
    """The record of a process of this machine; None where there is none, or where it is not one, whatever else it is."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError, OverflowError):
        # Neither a pipe nor a link: those who write here are not trusted to write what they should.
        descriptor = os.open(path_of(folder, pid), os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            data = os.read(descriptor, _MOST_BYTES + 1)
        finally:
            os.close(descriptor)
        return _record(json.loads(data)) if len(data) <= _MOST_BYTES else None
    return None


def _record(value: Any) -> Record:
    error = value["error"]
    return Record(**_checked(Record, value), error=None if error is None else _error(error))


def _error(value: Any) -> ErrorRecord:
    return ErrorRecord(
        **_checked(ErrorRecord, value), lost=_names(value["lost"]), told_by=_names(value["told_by"])
    )


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise TypeError(value)
    return tuple(short(each) for each in value[:_MOST_NAMED])


def _checked(kind: Any, value: Any) -> dict[str, Any]:
    """The plain fields of a dataclass from a JSON object, each of its type."""
    found = {}
    for field in dataclasses.fields(kind):
        if field.type not in _TYPES:
            continue
        given: Any = value[field.name]
        if not isinstance(given, _TYPES[field.type]) or isinstance(given, bool) != (field.type == "bool"):
            raise TypeError(field.name)
        if field.type == "float" and not math.isfinite(given):
            raise ValueError(field.name)
        found[field.name] = short(given) if isinstance(given, str) else given
    return found
