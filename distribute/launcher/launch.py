"""`python -m unisono launch`: the workers of one cluster on this machine, started, watched, restarted, ended.

Nothing here imports TensorFlow, so that the launcher starts at once and takes no accelerator.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from .guard import Guard, adopt_orphans
from .network import NO_NAME, PrivateNetwork, make_network
from .processes import Failure, Processes, how_it_ended
from .tasks import Layout, plan

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AFTER_FAILURE = 5.0
_PORT_RETRIES = 3
_SETTLE = 12.0
_CONSEQUENCE = (
    "Collective ops is aborted by",
    "lost contact with worker",
    "failed to connect to all addresses",
)
_PORT_TAKEN = ("Could not start gRPC server", "Address already in use", "is in use by another process")


class Launcher:
    """Runs a script on every worker until all are done.

    It owns the calendar of attempts: which failure is reported, whether there is another attempt, how long ending may
    take. `Processes` knows what a process is and how it ends.

    Args:
        script: path of the script and its arguments.
        layout: the cluster to start.
        restarts: int; how often all are started again after one has failed.
        log_dir: directory for the output of each task, or None: it is printed only.
        grace: float; seconds that workers get to end after a signal that the launcher passes on, before they are
            killed.
        network: "own": the processes get a network of their own where the kernel allows it; "host": that of this machine.
    """

    def __init__(
        self,
        script: Sequence[str],
        layout: Layout,
        restarts: int = 0,
        log_dir: Path | None = None,
        grace: float = 30.0,
        network: str = "own",
    ) -> None:
        self._script, self._layout = list(script), layout
        self._restarts, self._log_dir, self._grace = restarts, log_dir, grace
        self._wanted_network = network
        self._network: PrivateNetwork | None = None
        self._signals: list[int] = []
        self._stopping: int | None = None

    def run(self) -> int:
        """Runs to the end.

        Returns:
            0 when every script ended with 0; else the exit status of the one that failed first (128 + the signal
            where a signal ended it), or 128 + the signal that ended the launcher.
        """
        adopt_orphans()
        guard = Guard()
        self._network, sentence = make_network(self._wanted_network)
        if sentence:
            _say(sentence)
        try:
            with self._listening():
                return self._attempts(guard)
        finally:
            guard.close()
            if self._network is not None:
                self._network.close()

    def _attempts(self, guard: Guard) -> int:
        attempt, port_retries = 0, _PORT_RETRIES
        while True:
            processes = Processes(
                plan(self._layout, self._script), guard, self._log_dir, attempt, self._network
            )
            try:
                failure = self._watch(processes)
            finally:
                processes.end(_AFTER_FAILURE if self._stopping is None else 0.0)
            if failure is None:
                return 0
            self._report(failure)
            if self._stopping is not None:
                return 128 + self._stopping
            if _shows(failure, _PORT_TAKEN) and port_retries:
                port_retries -= 1
                _say("another program took the port in between: starting again with other ports")
                continue
            if attempt >= self._restarts:
                return failure.code if failure.code >= 0 else 128 - failure.code
            attempt += 1
            _say(f"starting all again, restart {attempt} of {self._restarts}")

    def _watch(self, processes: Processes) -> Failure | None:
        """One attempt, until all scripts have ended well (None) or one task has failed."""
        spare = self._restarts
        deadline = None
        failure = None
        while processes.scripts_left:
            for number in self._take_signals():
                processes.signal(number)
                if number in _ENDING:
                    if self._stopping is not None:
                        return failure or _stopped(processes, number)
                    self._stopping, deadline = number, time.monotonic() + self._grace
            for task, code in processes.ended():
                if code == 0 and task.role == "script":
                    continue
                found = Failure(task, code, processes.output.last_lines(task.name))
                if task.role == "spare" and self._stopping is None:
                    if spare > 0:
                        spare -= 1
                        _say(f"{found}: starting it again")
                        processes.start(task)
                    else:
                        _say(f"{found}: training continues without it")
                    continue
                failure = failure or found
                if self._stopping is None:
                    return self._first(failure, processes)
                processes.scripts_left.discard(task.name)
            if deadline is not None and time.monotonic() > deadline:
                return failure or _stopped(processes, self._stopping or signal.SIGTERM)
        return failure

    def _first(self, failure: Failure, processes: Processes) -> Failure:
        """The cause: a worker that ended because it lost a peer may have ended before that peer did."""
        until = time.monotonic() + _SETTLE
        while _shows(failure, _CONSEQUENCE) and processes.scripts_left and time.monotonic() < until:
            if self._signals:
                break
            for task, code in processes.ended():
                if code != 0 and task.role != "spare":
                    found = Failure(task, code, processes.output.last_lines(task.name))
                    failure = failure if _shows(found, _CONSEQUENCE) else found
                    processes.scripts_left.discard(task.name)
        return failure

    def _report(self, failure: Failure) -> None:
        if self._stopping is not None and failure.code in (-self._stopping, 128 + self._stopping):
            _say(f"the workers ended after {signal.Signals(self._stopping).name}")
            return
        _say(f"{failure.task.name} failed first: it {how_it_ended(failure.code)}. The others were ended.")
        if failure.last_lines:
            _say(f"the last lines of {failure.task.name}:")
            for line in failure.last_lines:
                _say(f"    {line}")
        if self._network is not None and _shows(failure, NO_NAME):
            _say(
                "it may have wanted to reach another machine, which the processes cannot in a network of their own: "
                "give --network host"
            )

    def _take_signals(self) -> list[int]:
        taken, self._signals = self._signals, []
        return taken

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Collects signals for the loop instead of dying of them."""

        def remember(number: int, frame: object) -> None:
            self._signals.append(number)

        old = {number: signal.signal(number, remember) for number in _PASSED_ON}
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def _stopped(processes: Processes, number: int) -> Failure:
    """The failure of a worker that did not end within its grace after a signal."""
    task = processes.any_script()
    return Failure(task, -int(signal.SIGKILL), [f"(it did not end after {signal.Signals(number).name})"])


def _shows(failure: Failure, marks: Sequence[str]) -> bool:
    return any(mark in line for line in failure.last_lines for mark in marks)


def _say(text: str) -> None:
    print(f"[launch] {text}", file=sys.stderr, flush=True)
