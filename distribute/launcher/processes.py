"""The processes of one attempt: started together, watched, ended together."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import subprocess
import time
from pathlib import Path

from ..environment import RESTART
from .guard import Guard, die_with_parent, orphans
from .network import PrivateNetwork, before_program
from .output import Output
from .tasks import Task

_POLL = 0.05
_AFTER_KILL = 10.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """Which task ended badly first, and how.

    Attributes:
        task: the task.
        code: int; exit status as `subprocess` gives it: negative is minus the signal.
        last_lines: what it printed last.
    """

    task: Task
    code: int
    last_lines: list[str]

    def __str__(self) -> str:
        """One sentence."""
        return f"{self.task.name} {how_it_ended(self.code)}"


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


class Processes:
    """Owns the processes of one attempt and their output. Decides nothing about restarts of the whole.

    Args:
        tasks: what to start; they start in this order.
        guard: told of each process group.
        log_dir: see `Output`.
        attempt: int; 0, or the number of the restart; the tasks see it as `UNISONO_RESTART`.
        network: the one that they enter; None: that of this process.
    """

    def __init__(
        self,
        tasks: list[Task],
        guard: Guard,
        log_dir: Path | None,
        attempt: int,
        network: PrivateNetwork | None = None,
    ) -> None:
        self._network = network
        self._guard, self._attempt = guard, attempt
        self.output = Output([task.name for task in tasks], log_dir, attempt)
        self._before = set(orphans(set()))
        self._running: dict[str, tuple[Task, subprocess.Popen[bytes]]] = {}
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
            env={**os.environ, **task.env, RESTART: str(self._attempt)},
            start_new_session=True,
            preexec_fn=before_program(self._network, die_with_parent),
        )
        self._guard.add(process.pid)
        self._running[task.name] = (task, process)
        assert process.stdout is not None and process.stderr is not None  # narrows the types
        self.output.add(task.name, process.stdout, process.stderr)

    def ended(self) -> list[tuple[Task, int]]:
        """Waits a moment for output; returns the tasks that have ended since, with their exit statuses."""
        self.output.pump(_POLL)
        found = []
        for name, (task, process) in list(self._running.items()):
            code = process.poll()
            if code is None:
                continue
            self.output.drain()
            self._kill_group(process.pid)  # what the task itself started and left
            self._guard.remove(process.pid)
            del self._running[name]
            if code == 0:
                self.scripts_left.discard(name)
            found.append((task, code))
        if not found and not self._running:
            time.sleep(_POLL)
        return found

    def signal(self, number: int) -> None:
        """Passes a signal on to every task that runs the script."""
        for task, process in self._running.values():
            if task.role == "script":
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(number)

    def any_script(self) -> Task:
        """A task that still runs the script, for reports."""
        return next(task for task, _ in self._running.values() if task.role == "script")

    def end(self, grace: float) -> None:
        """Ends all: SIGTERM, at most `grace` seconds, SIGKILL; then what they left behind."""
        if self._running and grace > 0:
            for _, process in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
            self._wait(grace)
        for _, process in self._running.values():
            self._kill_group(process.pid)
        self._wait(_AFTER_KILL)
        for pid in orphans(self._before | {self._guard.pid}):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        self.output.drain()
        self.output.close()

    def _wait(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while self._running and time.monotonic() < until:
            self.ended()

    @staticmethod
    def _kill_group(group: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
