"""No process is left behind: a small process that ends the workers when the launcher itself is killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys


class Guard:
    """Watches over process groups; kills those that are left when the launcher dies, however it dies.

    It is a fork of the launcher that reads a pipe: the end of the pipe is the end of the launcher. It owns no worker and
    decides nothing while the launcher lives. Start it before any thread.
    """

    def __init__(self) -> None:
        read, self._write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._write)
            _watch(read)
        os.close(read)

    def add(self, group: int) -> None:
        """Puts a process group under guard."""
        os.write(self._write, b"+%d\n" % group)

    def remove(self, group: int) -> None:
        """Removes a group that has ended: its number may be given to another process."""
        os.write(self._write, b"-%d\n" % group)

    def close(self) -> None:
        """Ends the guard, and whatever it still guards."""
        os.close(self._write)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _watch(read: int) -> None:
    """The life of the guard's process."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)
    silence = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(silence, standard)  # the launcher's own reader must not wait for us
    groups: set[int] = set()
    with os.fdopen(read, "rb") as orders:
        for order in orders:
            group = int(order[1:])
            (groups.add if order[:1] == b"+" else groups.discard)(group)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    os._exit(0)


def die_with_parent() -> None:
    """In a child, before it runs its program: the kernel kills it when the launcher dies (Linux; elsewhere nothing).

    Source: prctl(2), PR_SET_PDEATHSIG.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Makes this process the parent of the orphans among its descendants, so that it can find and end them (Linux).

    Source: prctl(2), PR_SET_CHILD_SUBREAPER.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)


def orphans(known: set[int]) -> list[int]:
    """Children of this process that are not `known`: what workers started and left behind (Linux; elsewhere [])."""
    me, found = str(os.getpid()), []
    if not os.path.isdir("/proc"):
        return []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) in known:
            continue
        try:
            with open(f"/proc/{name}/stat") as file:
                fields = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[1] == me:
            found.append(int(name))
    return found
