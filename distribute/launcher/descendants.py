"""The descendants of the launcher: found, ended, and reaped, even orphans in other sessions.

The launcher is a subreaper: an orphaned process of a worker becomes its child.
"""

import contextlib
import ctypes
import os
import signal
import time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_LONGEST_SWEEP = 10.0
_PAUSE = 0.01


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process from now on."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent() -> None:
    """Let the kernel kill a child when the launcher dies; the child calls it before it runs its program."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def end_descendants() -> None:
    """Kill the children of this process, and orphans that become its children, until none is left."""
    until = time.monotonic() + _LONGEST_SWEEP
    while time.monotonic() < until:
        known = {pid: stat_of(pid) for pid in map(int, filter(str.isdigit, os.listdir("/proc")))}
        me = os.getpid()
        children = [pid for pid, fields in known.items() if fields is not None and int(fields[1]) == me]
        if not children:
            return
        for pid in children:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(_PAUSE)


def bury_orphans(mine: set[int]) -> None:
    """Reap ended orphans of workers; the processes in `mine` are reaped elsewhere."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in mine:
                return
            os.waitpid(ended.si_pid, 0)


def stat_of(pid: int) -> list[str] | None:
    """Return the fields of proc(5) for a process from its state on; None where it has ended or is not known."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split() or None
    except OSError:
        return None
