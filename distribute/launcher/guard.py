"""The launcher leaves no process behind: it works in a child, and if one of the two is killed, the other ends the rest."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_LONGEST_SWEEP = 10.0
_PAUSE = 0.01


def guarded(work: Callable[[Callable[[], bool]], int]) -> int:
    """Runs `work` in a child process in a new session, and returns its status once no descendant is left.

    Both are subreapers (Linux): an orphaned process of a worker, even one in another session, becomes a child of one of
    them. Elsewhere process groups are ended; a process that left its group is not found.

    Signals are passed on to the child. It must be called before there is any thread.

    Args:
        work: `work(deserted)` returns an exit status; it must end once `deserted()` reports that this process was killed.
    """
    _control(_PR_SET_CHILD_SUBREAPER, 1)
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        _work(work, guard)
    with signals_to(lambda number, _: _send(child, number)):
        _, status = os.waitpid(child, 0)
    end_descendants()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def signals_to(handler: Callable[[int, object], None]) -> Iterator[None]:
    """Gives the signals that are passed on to a handler, for a block."""
    old = {number: signal.signal(number, handler) for number in PASSED_ON}
    try:
        yield
    finally:
        for number, previous in old.items():
            signal.signal(number, previous)


def _work(work: Callable[[Callable[[], bool]], int], guard: int) -> None:
    """The main function of the child."""

    def deserted() -> bool:
        return os.getppid() != guard

    code = 70
    try:
        os.setsid()  # signals from a terminal reach the guard alone, which passes them on
        _control(_PR_SET_CHILD_SUBREAPER, 1)
        notice_parents_end()
        code = work(deserted)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            end_descendants()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def notice_parents_end() -> None:
    """In the working child: the kernel sends SIGUSR1, which interrupts any wait, when the guard dies (Linux)."""
    _control(_PR_SET_PDEATHSIG, int(signal.SIGUSR1))


def die_with_parent() -> None:
    """In a child, before it runs its program: the kernel kills it when the launcher dies (Linux; elsewhere nothing)."""
    _control(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def end_descendants() -> None:
    """Kills the children of this process, and orphans that become its children, until none is left."""
    until = time.monotonic() + _LONGEST_SWEEP
    while (found := children()) and time.monotonic() < until:
        for pid in found:
            _send(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE)


def bury_orphans(mine: set[int]) -> None:
    """Reaps ended orphans of workers; the processes in `mine` are reaped elsewhere."""
    if not hasattr(os, "waitid"):
        return
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in mine:
                return
            os.waitpid(ended.si_pid, 0)


def children() -> list[int]:
    """The children of this process (Linux; elsewhere [])."""
    me = os.getpid()
    return [pid for pid, (_, parent) in _processes().items() if parent == me]


def state_of(pid: int) -> str:
    """The state of a process as in proc(5): "T" is stopped by a signal; "" where it is not known."""
    return (stat_of(pid) or [""])[0]


def stat_of(pid: int) -> list[str] | None:
    """The fields of proc(5) for a process from its state on; None where it has ended or is not known."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split() or None
    except OSError:
        return None


def _processes() -> dict[int, tuple[str, int]]:
    if not os.path.isdir("/proc/self"):
        return {}
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return {pid: (found[0], int(found[1])) for pid in pids if (found := stat_of(pid)) is not None}


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _control(option: int, value: int) -> None:
    """prctl(2), on Linux."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
