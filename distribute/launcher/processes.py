"""The processes of one attempt: started together, watched, ended together."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from ..environment import RECORDS, RESTART
from ..workers import records
from ..workers.error_text import own_lines
from .descendants import bury_orphans, die_with_parent, end_descendants, stat_of
from .error_attribution import ProcessState
from .output import Output
from .tasks import Task

_POLL = 0.05
_EVERY = 0.5  # seconds between two reads of records and states
_AFTER_KILL = 10.0
_LAST_LINES = 20


class Processes:
    """Owns the processes of one attempt and their output. Knows nothing of restarts or failure attribution.

    It starts the tasks in their order; they see the number of the attempt, 0 at first, as `UNISONO_RESTART`, and write their
    records to a folder.
    """

    def __init__(self, tasks: list[Task], records: Path, log_dir: Path | None, attempt: int) -> None:
        self._records, self._attempt = records, attempt
        self.output = Output([task.name for task in tasks], log_dir, attempt)
        self._states: dict[str, ProcessState] = {}
        self._checked = 0.0
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
        """Start one task in a new session and process group."""
        process = subprocess.Popen(
            task.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **task.env, RESTART: str(self._attempt), RECORDS: str(self._records)},
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        self._states[task.name] = ProcessState(task, process)
        assert process.stdout is not None and process.stderr is not None  # narrows the types
        self.output.add(task.name, process.stdout, process.stderr)

    def start_later(self, task: Task, seconds: float) -> None:
        """Schedule a task for `start_those_due`, in `seconds`."""
        self._due.append((time.monotonic() + seconds, task))

    def start_those_due(self) -> None:
        """Start the tasks that are due."""
        now = time.monotonic()
        for each in [each for each in self._due if each[0] <= now]:
            self._due.remove(each)
            self.start(each[1])

    def wait_for_ended(self) -> list[tuple[Task, int]]:
        """Wait a moment for output; return the tasks that have ended since, with their exit statuses."""
        began = time.monotonic()
        wrote = self.output.pump(_POLL)
        self._check()
        found = []
        for each in self._find_running():
            if (code := each.process.poll()) is None:
                continue
            self.output.drain()
            self._kill_group(each.process.pid)  # processes that the task itself left
            each.code, each.ended, each.stopped = code, time.time(), None
            each.record = records.read(self._records, each.process.pid)
            if code == 0:
                self.scripts_left.discard(each.task.name)
            found.append((each.task, code))
        bury_orphans({each.process.pid for each in self._find_running()})
        if not found and not wrote:
            time.sleep(max(0.0, _POLL - (time.monotonic() - began)))
        return found

    def states(self) -> list[ProcessState]:
        """Return the states of all processes, for `attribute`."""
        self._check(always=True)
        for each in self._states.values():
            each.lines = self.output.last_lines(each.task.name)
        return list(self._states.values())

    def last_lines(self, name: str) -> list[str]:
        """Return the last lines that a task's program itself printed, oldest first."""
        return own_lines(self.output.last_lines(name))[-_LAST_LINES:]

    def is_failing(self) -> bool:
        """Return whether a task that still runs has recorded an error that ends its program."""
        return any(each.error is not None for each in self._find_running())

    def find_stopped(self, seconds: float) -> list[Task]:
        """Return the tasks that have been stopped (SIGSTOP) for at least so long."""
        now = time.time()
        return [s.task for s in self._find_running() if s.stopped is not None and now - s.stopped >= seconds]

    def signal(self, number: int) -> None:
        """Pass a signal on to every task that runs the script."""
        for each in self._find_running():
            if each.task.role == "script":
                each.process.send_signal(number)

    def kill(self, name: str) -> None:
        """Kill a task."""
        self._kill_group(self._states[name].process.pid)
        self._states[name].stopped = None

    def any_script(self) -> Task:
        """Return a task that still runs the script, for reports."""
        return next(each.task for each in self._find_running() if each.task.role == "script")

    def end(self, grace: float) -> None:
        """End all: SIGTERM, at most `grace` seconds, SIGKILL; then their remaining children."""
        for each in self._find_running():
            if grace > 0 and each.stopped is None:
                each.process.send_signal(signal.SIGTERM)
            else:
                self._kill_group(each.process.pid)
        self._wait(grace)
        for each in self._find_running():
            self._kill_group(each.process.pid)
        self._wait(_AFTER_KILL)
        end_descendants()
        self.output.drain()
        self.output.close()

    def _find_running(self) -> list[ProcessState]:
        return [each for each in self._states.values() if each.code is None]

    def _check(self, always: bool = False) -> None:
        """Read the records and the states of the running processes."""
        now = time.monotonic()
        if not always and now - self._checked < _EVERY:
            return
        asleep = now - self._checked > 10 * _EVERY  # this process itself was stopped, or the machine slept
        self._checked = now
        for each in self._find_running():
            each.record = records.read(self._records, each.process.pid)
            if (stat_of(each.process.pid) or [""])[0] != "T":
                each.stopped = None
            elif each.stopped is None or asleep:  # a killed one may be seen once more
                each.stopped = time.time()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._find_running() and time.monotonic() < until:
            self.wait_for_ended()

    @staticmethod
    def _kill_group(group: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
