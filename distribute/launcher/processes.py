"""The processes of one attempt: started together, watched, ended together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

from ..environment import RECORDS, RESTART
from ..workers import record
from ..workers.own_text import own_lines
from .guard import bury_orphans, die_with_parent, end_descendants, state_of
from .output import Output
from .tasks import Task
from .verdict import Witness

_POLL = 0.05
_LOOK = 0.5  # seconds between two looks at records and states
_AFTER_KILL = 10.0
_LAST_LINES = 20


@dataclasses.dataclass
class _Seen:
    """What has been seen of one process.

    Attributes:
        task: what it is.
        process: the process.
        code: int or None; its exit status.
        ended: float; `time.time()` at which its end was seen.
        stopped: float or None; `time.time()` since which it is stopped.
        record: what it last recorded.
    """

    task: Task
    process: subprocess.Popen[bytes]
    code: int | None = None
    ended: float = 0.0
    stopped: float | None = None
    record: record.Record | None = None


class Processes:
    """Owns the processes of one attempt and their output. Decides nothing about restarts, and blames nobody.

    Args:
        tasks: what to start; they start in this order.
        records: folder for the records that the processes leave of themselves.
        log_dir: see `Output`.
        attempt: int; 0, or the number of the restart; the tasks see it as `UNISONO_RESTART`.
    """

    def __init__(
        self,
        tasks: list[Task],
        records: Path,
        log_dir: Path | None,
        attempt: int,
    ) -> None:
        self._records, self._attempt = records, attempt
        self.output = Output([task.name for task in tasks], log_dir, attempt)
        self._seen: dict[str, _Seen] = {}
        self._looked = 0.0
        self._due: list[tuple[float, Task]] = []
        self.several = len(tasks) > 1
        self.scripts_left = {task.name for task in tasks if task.role == "script"}
        try:
            for task in tasks:
                self.start(task)
        except BaseException:
            self.end(0.0)
            raise

    def start(self, task: Task) -> None:
        """Starts one task in a session and process group of its own."""
        process = subprocess.Popen(
            task.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **task.env, RESTART: str(self._attempt), RECORDS: str(self._records)},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._seen[task.name] = _Seen(task, process)
        assert process.stdout is not None and process.stderr is not None  # narrows the types
        self.output.add(task.name, process.stdout, process.stderr)

    def start_later(self, task: Task, seconds: float) -> None:
        """Has `start_those_due` start a task in so many seconds."""
        self._due.append((time.monotonic() + seconds, task))

    def start_those_due(self) -> None:
        """Starts the tasks whose time has come."""
        now = time.monotonic()
        due, self._due = (
            [t for at, t in self._due if at <= now],
            [each for each in self._due if each[0] > now],
        )
        for task in due:
            self.start(task)

    def ended(self) -> list[tuple[Task, int]]:
        """Waits a moment for output; returns the tasks that have ended since, with their exit statuses."""
        began = time.monotonic()
        wrote = self.output.pump(_POLL)
        self._look()
        found = []
        for seen in self._running():
            code = seen.process.poll()
            if code is None:
                continue
            self.output.drain()
            self._kill_group(seen.process.pid)  # what the task itself started and left
            seen.code, seen.ended, seen.stopped = code, time.time(), None
            seen.record = record.read(self._records, seen.process.pid)
            if code == 0:
                self.scripts_left.discard(seen.task.name)
            found.append((seen.task, code))
        bury_orphans({seen.process.pid for seen in self._running()})
        if not found and not wrote:
            time.sleep(max(0.0, _POLL - (time.monotonic() - began)))
        return found

    def witnesses(self) -> list[Witness]:
        """What is known of each process, for `judge`."""
        self._look(always=True)
        return [
            Witness(
                seen.task.name,
                seen.task.aliases,
                seen.task.role == "script",
                seen.task.role == "spare",
                seen.code,
                seen.ended,
                seen.stopped,
                seen.record,
                self.output.last_lines(seen.task.name),
            )
            for seen in self._seen.values()
        ]

    def last_lines(self, name: str) -> list[str]:
        """The last lines of the program's own that a task printed, oldest first."""
        return own_lines(self.output.last_lines(name))[-_LAST_LINES:]

    def failing(self) -> bool:
        """Whether a task that still runs has recorded an error that ends its program."""
        return any(seen.record is not None and seen.record.error is not None for seen in self._running())

    def stopped_for(self, seconds: float) -> list[Task]:
        """The tasks that have been stopped (SIGSTOP) for at least so long."""
        now = time.time()
        return [s.task for s in self._running() if s.stopped is not None and now - s.stopped >= seconds]

    def signal(self, number: int) -> None:
        """Passes a signal on to every task that runs the script."""
        for seen in self._running():
            if seen.task.role == "script":
                seen.process.send_signal(number)

    def kill(self, name: str) -> None:
        """Ends a task without asking."""
        self._kill_group(self._seen[name].process.pid)
        self._seen[name].stopped = None

    def any_script(self) -> Task:
        """A task that still runs the script, for reports."""
        return next(seen.task for seen in self._running() if seen.task.role == "script")

    def end(self, grace: float) -> None:
        """Ends all: SIGTERM, at most `grace` seconds, SIGKILL; then what they left behind."""
        for seen in self._running():
            if grace > 0 and seen.stopped is None:
                seen.process.send_signal(signal.SIGTERM)
            else:
                self._kill_group(seen.process.pid)
        self._wait(grace)
        for seen in self._running():
            self._kill_group(seen.process.pid)
        self._wait(_AFTER_KILL)
        end_descendants()
        self.output.drain()
        self.output.close()

    def _running(self) -> list[_Seen]:
        return [seen for seen in self._seen.values() if seen.code is None]

    def _look(self, always: bool = False) -> None:
        """Reads the records and the states of those that run."""
        now = time.monotonic()
        if not always and now - self._looked < _LOOK:
            return
        asleep = now - self._looked > 10 * _LOOK  # this process itself was stopped, or the machine slept
        self._looked = now
        for seen in self._running():
            seen.record = record.read(self._records, seen.process.pid)
            if state_of(seen.process.pid) != "T":
                seen.stopped = None
            elif seen.stopped is None or asleep:  # one that was killed may be seen once more
                seen.stopped = time.time()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._running() and time.monotonic() < until:
            self.ended()

    @staticmethod
    def _kill_group(group: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
