"""Which process made a file, on which machine, and whether it still runs."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import os
import re
import socket
from pathlib import Path

from ..distribute.launcher.descendants import stat_of

# `.NAME.PLACE-PID-STARTED.tmp.SUFFIXES`: an incomplete file, with the process that writes it.
_TEXT = re.compile(r"([0-9a-f]{8})-([0-9]{1,19})-([0-9]{1,19})")


@dataclasses.dataclass(frozen=True)
class ProcessIdentity:
    """Identifies a process among those of all machines, even if its number is reused later."""

    place: str  # 8 hexadecimal digits: the boot of the machine and the space of process numbers in which `pid` holds
    pid: int
    started: int  # of the process, in ticks of its machine's clock; 0 where the machine does not tell

    def __str__(self) -> str:
        return f"{self.place}-{self.pid}-{self.started}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Parse the result of `str`; None for any other text."""
        match = _TEXT.fullmatch(text)
        return cls(match[1], int(match[2]), int(match[3])) if match else None

    def runs(self) -> bool | None:
        """Return whether the process runs; None where this machine or container cannot know."""
        if self.place != _place():
            return None
        if self.pid == os.getpid():
            return self.started == this_process().started
        started = _find_start_time(self.pid)
        return started is not None and started == self.started


def this_process() -> ProcessIdentity:
    """Return the identity of this process."""
    pid = os.getpid()
    return ProcessIdentity(_place(), pid, _find_start_time(pid) or 0)


@functools.cache
def _place() -> str:
    """Return the current boot of the machine, and the namespace of its process numbers (a container has its own)."""
    boot = space = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    with contextlib.suppress(OSError):
        space = os.readlink("/proc/self/ns/pid")
    # Names of machines change (by DHCP); the number of a boot does not.
    known = boot or f"{socket.gethostname()}\n"
    return hashlib.blake2b(f"{known}\n{space}".encode(), digest_size=4).hexdigest()


def _find_start_time(pid: int) -> int | None:
    """Return when a process of this machine was started; None if it has ended."""
    fields = stat_of(pid)
    return None if fields is None or fields[0] in "ZX" else int(fields[19])
