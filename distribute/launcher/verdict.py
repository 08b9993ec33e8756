"""Which process failed first: judged from how each ended, what it recorded of itself, and what it says of the others.

Nothing here looks at a process: what is known comes in as `Witness`es, and a `Verdict` goes out.
"""

from __future__ import annotations

import dataclasses
import re
import signal
from collections.abc import Sequence

from ..workers.accusations import Accusation, accusation_in
from ..workers.record import Record, short

_OWN_FAULTS = {signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}
_INSTANT = 1e-3
_MOST_TEXT = 400


@dataclasses.dataclass(frozen=True)
class Witness:
    """What is known of one process. Times are those of `time.time()`.

    Attributes:
        name: what logs call it, "worker-0".
        aliases: what errors call it: "worker 0", its address.
        script: whether it runs the script; else it serves those that do.
        spare: whether the others can go on without it.
        code: int or None; its exit status as `subprocess` gives it; None while it runs.
        ended: float; when it ended.
        stopped: float or None; since when it is stopped (SIGSTOP).
        record: what it wrote of itself, or None.
        lines: the last lines that it printed.
    """

    name: str
    aliases: frozenset[str] = frozenset()
    script: bool = True
    spare: bool = False
    code: int | None = None
    ended: float = 0.0
    stopped: float | None = None
    record: Record | None = None
    lines: Sequence[str] = ()

    @property
    def failed(self) -> bool:
        """Whether its program has ended badly, or is about to."""
        return self.code not in (None, 0) or (self.record is not None and self.record.error is not None)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """Who failed first.

    Attributes:
        name: of the process.
        what: str; what happened to it, as a predicate: "exited with status 3".
        time: float; when.
        status: int; the exit status for the launcher, never 0.
        error: str or None; the error and where it happened, the same whenever it happens again; None for what is not the
            program's doing (a signal from outside, a process that hangs).
        hangs: bool; whether it still runs, and will not end when it is asked to.
        sure: bool; False where more may come to light in a moment: a process that is said to hang may be failing, and one
            that ended with a status of its own choice may have done so because it lost another.
    """

    name: str
    what: str
    time: float
    status: int
    error: str | None = None
    hangs: bool = False
    sure: bool = True


def judge(witnesses: Sequence[Witness], now: float) -> list[Verdict]:
    """Those that failed by themselves, the first one first; empty where nobody has failed.

    A process that only says that it lost another, or was told of an error by one, is not among them, unless nobody else is.
    """
    said = {w.name: _accusation(w, witnesses) for w in witnesses if w.failed}
    found = [verdict for w in witnesses if (verdict := _own_failure(w, said.get(w.name), now)) is not None]
    known = {verdict.name for verdict in found}
    for accuser in (w for w in witnesses if said.get(w.name) is not None):
        for name in said[accuser.name].lost:  # type: ignore[union-attr]
            accused = _find(witnesses, name)
            if accused is None or accused.name in known or said.get(accused.name) is not None:
                continue
            known.add(accused.name)
            found.append(_lost(accused, accuser, now))
    if not found:
        failed = [w for w in witnesses if w.failed and not w.spare]
        found = [dataclasses.replace(_ended(w, now), sure=False, error=None) for w in failed]
    return sorted(found, key=lambda verdict: verdict.time)


def how_it_ended(code: int) -> str:
    """An exit status in words.

    >>> how_it_ended(3), how_it_ended(-9)
    ('exited with status 3', 'was killed by SIGKILL')
    """
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _accusation(witness: Witness, witnesses: Sequence[Witness]) -> Accusation | None:
    """What a process that failed says of others, where that can be: an error may name whom it merely passed."""
    error = witness.record.error if witness.record is not None else None
    if error is not None:
        said = Accusation(error.lost, error.told_by) if error.consequence else None
    elif witness.code is not None and witness.code < 0 and -witness.code not in _OWN_FAULTS:
        return None  # killed from outside, whatever it had printed
    else:
        said = accusation_in("\n".join(witness.lines))
    if said is None:
        return None
    others = {w.name: w for name in (*said.lost, *said.told_by) if (w := _find(witnesses, name)) is not None}
    others.pop(witness.name, None)
    if said.lost and (others or _find(witnesses, said.lost[0]) is None):
        return said
    # An error of the program's that came from a process which serves it is the program's.
    bad = any(w.failed or w.stopped is not None for w in others.values())
    return said if bad or not (said.lost or said.told_by) else None


def _own_failure(witness: Witness, said: Accusation | None, now: float) -> Verdict | None:
    if witness.spare:
        return None
    if witness.stopped is not None and witness.code is None:
        return _stopped(witness, witness.stopped, now)
    served_badly = witness.code == 0 and not witness.script
    return _ended(witness, now) if served_badly or (witness.failed and said is None) else None


def _stopped(witness: Witness, since: float, now: float) -> Verdict:
    what = f"is stopped (SIGSTOP) and has been for {max(0.0, now - since):.0f} s"
    return Verdict(witness.name, what + _position(witness), since, 1, hangs=True)


def _ended(witness: Witness, now: float) -> Verdict:
    """The verdict about one that has ended or recorded an error."""
    code, record = witness.code, witness.record
    status = 1 if code is None or code == 0 else code if code > 0 else 128 - code
    if record is not None and record.error is not None:
        error = record.error
        place = f", in {error.place}" if error.place else ""
        at = f", at {record.position}" if record.position else ""
        text = short(error.text, _MOST_TEXT).rstrip(".")
        what = f"raised {error.kind}: {text}{place}{at}"
        key = f"{error.kind}: {error.text} {error.place}"
        return Verdict(witness.name, what, error.time, status, _same(key, record))
    if code is None:
        return Verdict(witness.name, "failed", now, status)
    by_itself = code >= 0 or -code in _OWN_FAULTS
    error_key = _same(how_it_ended(code), record) if record is not None and by_itself else None
    what = how_it_ended(code) + _position(witness)
    sure = code < 0 or record is None or not record.meetings
    return Verdict(witness.name, what, witness.ended, status, error_key, sure=sure)


def _lost(accused: Witness, accuser: Witness, now: float) -> Verdict:
    """The verdict about one that others lost, and that has not failed itself."""
    noticed = accuser.ended
    if accuser.record is not None and accuser.record.error is not None:
        noticed = accuser.record.error.time
    if accused.code is not None:
        early = f"ended early, with status 0, while {accuser.name} still needed it"
        what = early if accused.code == 0 else how_it_ended(accused.code)
        return Verdict(accused.name, what + _position(accused), min(accused.ended, noticed - _INSTANT), 1)
    if accused.stopped is not None:  # one that others could do without
        return _stopped(accused, accused.stopped, now)
    record = accused.record
    since = noticed - _INSTANT
    what = f"hangs or is too slow, as {accuser.name} found"
    if record is not None:
        since = min(since, record.since or since)
        if now - record.alive > 5:
            what = f"hangs, and has given no sign of life for {now - record.alive:.0f} s, as {accuser.name} found"
        if record.place:
            what += f", in {record.place}"
    return Verdict(accused.name, what + _position(accused), since, 1, hangs=True, sure=False)


def _position(witness: Witness) -> str:
    record = witness.record
    return f"; it was last seen at {record.position}" if record is not None and record.position else ""


def _same(error: str, record: Record) -> str:
    """An error and the step at which it came, without the numbers in it that differ from time to time."""
    return f"{re.sub(r'0x[0-9a-fA-F]+|[0-9]+', '#', error)} | {record.position}"


def _find(witnesses: Sequence[Witness], name: str) -> Witness | None:
    return next((w for w in witnesses if name in w.aliases), None)
