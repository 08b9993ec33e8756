"""Attribution of failures: which process failed first, from exit statuses, records, and the processes that errors name.

Pure functions: their input are `ProcessState`s, their output `Failure`s.
"""

import dataclasses
import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from ..workers.error_text import Blame, blame_in
from ..workers.records import ErrorRecord, Record, short
from .tasks import Task

_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_INSTANT = 1e-3
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0  # seconds before a restart
_MOST_TEXT = 400


@dataclasses.dataclass
class ProcessState:
    """The known state of one process. Times are those of `time.time()`."""

    task: Task  # with the names that errors use for it
    process: Any = None  # `subprocess.Popen`; None: not needed
    code: int | None = None  # its exit status as `subprocess` gives it; None while it runs
    ended: float = 0.0  # when its end was noticed
    stopped: float | None = None  # since when it is stopped (SIGSTOP)
    record: Record | None = None  # the last one
    lines: Sequence[str] = ()  # the last ones that it printed

    @property
    def error(self) -> ErrorRecord | None:
        """The recorded error that ends its program."""
        return self.record and self.record.error

    @property
    def failed(self) -> bool:
        """Whether its program has failed, or is about to fail."""
        return self.code not in (None, 0) or self.error is not None


@dataclasses.dataclass(frozen=True)
class Failure:
    """One process that failed."""

    name: str  # of the process
    what: str  # the failure, as a predicate: "exited with status 3"
    time: float
    status: int  # the exit status for the launcher, never 0
    # The error and its location, the same for every repetition; None for a cause outside the program (a signal from
    # outside, a process that hangs).
    error: str | None = None
    hangs: bool = False  # whether it still runs, and will not end on request
    # False where more may be known in a moment: a process that seems to hang may be failing, and a process that chose its
    # exit status may have done so because it lost another.
    sure: bool = True
    of_others: bool = False  # whether it only reports a process of another machine


def attribute(processes: Sequence[ProcessState], now: float) -> list[Failure]:
    """Return the processes that failed by themselves, the first one first; empty where none has failed.

    A process that only reports a lost peer, or a peer's error, is left out, unless no other process failed.
    """
    by_name = {each.record.task: each for each in processes if each.record is not None}
    by_name |= {name: each for each in processes for name in each.task.aliases}
    blames = {each.task.name: _blame(each, by_name) for each in processes if each.failed}
    found = {each.task.name: _own_failure(each, blames.get(each.task.name), now) for each in processes}
    for survivor in processes:
        blame = blames.get(survivor.task.name)
        for lost in (by_name.get(name) for name in (blame.lost if blame else ())):
            if lost is not None and not found[lost.task.name] and blames.get(lost.task.name) is None:
                found[lost.task.name] = _describe_loss(lost, survivor, now)
    if not (failures := [each for each in found.values() if each is not None]):
        ended = [_describe_end(each, now) for each in processes if each.failed and each.task.role != "spare"]
        failures = [dataclasses.replace(each, sure=False, error=None, of_others=True) for each in ended]
    return sorted(failures, key=lambda failure: failure.time)


def how_it_ended(code: int) -> str:
    """Return an exit status as text.

    >>> how_it_ended(3), how_it_ended(-9)
    ('exited with status 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with status {code}"
    known = -code in {*signal.Signals}
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def _blame(process: ProcessState, by_name: Mapping[str, ProcessState]) -> Blame | None:
    """Return a failed process's report about others, if it can be a cause: an error may name a process that passed it on."""
    if process.error is not None:
        blame = process.error.blame
    elif process.code is not None and process.code < 0 and -process.code not in _OWN_FAULTS:
        return None  # killed from outside, whatever it has printed
    else:
        blame = blame_in("\n".join(process.lines))
    if blame is None:
        return None
    names = (*blame.lost, *blame.reported_by)
    others = [by_name[name] for name in names if name in by_name and by_name[name] is not process]
    if blame.lost and (others or not by_name.keys() >= set(names)):
        return blame
    # An error of the program that a serving process passed on is the program's.
    bad = any(each.failed or each.stopped is not None for each in others)
    return blame if bad or not (blame.lost or blame.reported_by) else None


def _own_failure(process: ProcessState, blame: Blame | None, now: float) -> Failure | None:
    if process.task.role == "spare":
        return None
    if process.stopped is not None and process.code is None:
        return _describe_stop(process, process.stopped, now)
    served_badly = process.code == 0 and process.task.role != "script"
    return _describe_end(process, now) if served_badly or (process.failed and blame is None) else None


def _describe_stop(process: ProcessState, since: float, now: float) -> Failure:
    what = f"is stopped (SIGSTOP) and has been for {max(0.0, now - since):.0f} s"
    return Failure(process.task.name, what + _position(process), since, 1, hangs=True)


def _describe_end(process: ProcessState, now: float) -> Failure:
    """Return the failure of a process that has ended or recorded an error."""
    code, record, error = process.code, process.record, process.error
    status = 1 if code is None or code == 0 else code if code > 0 else 128 - code
    if record is not None and error is not None:
        place = f", in {error.place}" if error.place else ""
        at = f", at {record.position}" if record.position else ""
        what = f"raised {error.kind}: {short(error.text, _MOST_TEXT).rstrip('.')}{place}{at}"
        key = f"{error.kind}: {error.text} {error.place}"
        return Failure(process.task.name, what, error.time, status, _same(key, record))
    if code is None:
        return Failure(process.task.name, "failed", now, status)
    by_itself = code >= 0 or -code in _OWN_FAULTS
    error_key = _same(how_it_ended(code), record) if record is not None and by_itself else None
    what = how_it_ended(code) + _position(process)
    sure = code < 0 or record is None or not record.collectives
    return Failure(process.task.name, what, process.ended, status, error_key, sure=sure)


def _describe_loss(lost: ProcessState, survivor: ProcessState, now: float) -> Failure:
    """Return the failure of a process that others lost, and that has not failed itself."""
    noticed = survivor.ended if survivor.error is None else survivor.error.time
    if lost.code is not None:
        early = f"exited early, with status 0, while {survivor.task.name} still needed it"
        what = early if lost.code == 0 else how_it_ended(lost.code)
        return Failure(lost.task.name, what + _position(lost), min(lost.ended, noticed - _INSTANT), 1)
    if lost.stopped is not None:  # a process that the others can replace
        return _describe_stop(lost, lost.stopped, now)
    record = lost.record
    since = noticed - _INSTANT
    what = f"hangs or is too slow, as {survivor.task.name} found"
    if record is not None:
        since = min(since, record.since or since)
        if now - record.alive > 5:
            what = f"hangs, and has sent no heartbeat for {now - record.alive:.0f} s, as {survivor.task.name} found"
        if record.place:
            what += f", in {record.place}"
    return Failure(lost.task.name, what + _position(lost), since, 1, hangs=True, sure=False)


def _position(process: ProcessState) -> str:
    record = process.record
    return f"; it was last seen at {record.position}" if record is not None and record.position else ""


def _same(error: str, record: Record) -> str:
    """Return an error and its step, without numbers that differ between attempts."""
    return f"{re.sub(r'0x[0-9a-fA-F]+|[0-9]+', '#', error)} | {record.position}"


class Restarts:
    """Counts restarts, at most `most`, with exponential backoff: 1, 2, 4, ... and at most 60 s.

    `repeated`: two successive attempts failed at the same step with the same error, so a further attempt would fail there
    too.

    >>> restarts = Restarts(3)
    >>> restarts.next("ValueError: no | epoch 1, step 2"), restarts.next(None), restarts.next("other"), restarts.next(None)
    (1.0, 2.0, 4.0, None)
    """

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._error: str | None = None
        self.repeated = False

    def next(self, error: str | None, counted: bool = True) -> float | None:
        """Return the seconds to the next attempt, None for no more; `error`: the last and its step; None: from outside."""
        if not counted:
            return _FIRST_PAUSE
        self.repeated = error is not None and error == self._error
        self._error = error
        if self._count >= self._most or self.repeated:
            return None
        self._count += 1
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** (self._count - 1))
