"""`python -m unisono launch`: the workers of one cluster on this machine, started, watched, restarted, ended.

Nothing here imports TensorFlow, so that the launcher starts quickly and uses no accelerator.
"""

import dataclasses
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from ..environment import NO_PLACE, REJOIN, SINCE, WRONG_BACKUPS
from .descendants import adopt_orphans
from .error_attribution import Failure, Restarts, attribute, how_it_ended
from .gpus import read_gpus
from .network import enter_private_network
from .output import plain
from .processes import Processes
from .tasks import RequestedCluster, Task, plan

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PASSED_ON = (*_ENDING, signal.SIGUSR1, signal.SIGUSR2)
_AFTER_FAILURE = 3.0  # seconds for the other processes to end
_SETTLE = 3.0  # seconds for a failed process to end and write its record, before failures are attributed
_PATIENCE = 4.0  # seconds beyond the timeout for the others to report a stopped process themselves
_SPARE_SHARE = 0.5  # of the timeout: a replaceable worker is replaced before the coordinator gives up on it
_PORT_RETRIES = 3
_PORT_TAKEN = ("Could not start gRPC server", "Address already in use", "is in use by another process")
_WRONG_ARGUMENT = 2
_SAVED = 143  # of a worker that saved and exited because a signal asked it to
_ELASTIC = {
    REJOIN: "the workers saved, to restart with the machine that joined",
    NO_PLACE: "the machine of the endpoint is lost, or too few joined: run this command again later",
}
_MOST_OTHERS = 8
WARNING = (
    "whoever reaches the ports of these processes can run code as you: TensorFlow's servers listen on all interfaces. Close "
    "them to others (`unisono launch --help` has the firewall rule), or pass --network private"
)


@dataclasses.dataclass
class Supervisor:
    """Runs a script, with its arguments, on every worker of a layout until all are done.

    It decides when an attempt is over, whether another follows, and how long processes have to exit. `Processes` starts and
    ends processes, `attribute` finds the one that failed first, `Restarts` decides whether to try again.
    """

    script: Sequence[str]  # its path, or -m and a module, and its arguments
    layout: RequestedCluster
    most_restarts: int  # how often all processes are restarted after a failure
    log_dir: Path | None  # for the output of each task; None: the output is only printed
    grace: float  # seconds after a signal that the launcher passes on, until the workers are killed
    network: str  # "host": that of this machine; "private": one with a loopback interface only
    _signals: list[int] = dataclasses.field(default_factory=list)
    _stopping: int | None = None
    _saving: bool = False  # the workers were sent SIGUSR1, after which they save and exit
    _lost_at: str | None = None  # the position in training at which workers of other machines were lost last

    def run(self) -> int:
        """Run to the end, and return the exit status. Context: no thread has been started.

        It is 0 if every script exited with 0; else that of the process that failed first (128 + the signal where a signal
        killed it, 1 where its status was 0), or 128 + the signal that stopped the launcher; 2 if the machine has too few
        GPUs. Raise an OSError if the kernel allows no private network.
        """
        adopt_orphans()
        layout = self.layout
        if self.network == "private":
            read_gpus()  # may load the driver, which a user namespace has no privilege for
            enter_private_network()
        elif layout.nnodes * layout.workers * layout.stages > 1 or layout.parameter_servers:
            _say(WARNING)
        if layout.nnodes > 1:
            os.environ.pop("TF_CONFIG", None)  # the workers get theirs when they meet
        with tempfile.TemporaryDirectory(prefix="unisono-records-") as records:
            old = {
                each: signal.signal(each, lambda number, _: self._signals.append(number))
                for each in PASSED_ON
            }
            try:
                return self._attempts(Path(records))
            except ValueError as error:
                print(f"unisono launch: {error}", file=sys.stderr)
                return _WRONG_ARGUMENT
            finally:
                for number, previous in old.items():
                    signal.signal(number, previous)

    def _attempts(self, records: Path) -> int:
        attempt, port_retries, restarts = 0, _PORT_RETRIES, Restarts(self.most_restarts)
        while True:
            processes = Processes(plan(self.layout, self.script), records, self.log_dir, attempt)
            failed: list[Failure] = []
            try:
                failed = self._watch(processes)
            finally:
                for failure in failed:
                    if failure.hangs:
                        processes.kill(failure.name)
                processes.end(_AFTER_FAILURE if self._stopping is None else 0.0)
            if not failed:
                return 0
            first = failed[0]
            if self._saving and first.status == _SAVED:
                _say("the workers saved and exited after SIGUSR1")
                return _SAVED
            self._report(failed, processes)
            if self._stopping is not None:
                return 128 + self._stopping
            if self.layout.fewest_nodes and first.status == NO_PLACE:
                return NO_PLACE
            if first.error and first.error.startswith("FolderInUseError"):  # a restart would take it back
                _say("another run uses this directory of backups: not restarting")
                return first.status
            if first.status == WRONG_BACKUPS:
                _say("a restart would find the same backups: not restarting")
                return first.status
            last = processes.output.last_lines(first.name)
            if (
                port_retries
                and self.layout.nnodes == 1
                and any(mark in line for line in last for mark in _PORT_TAKEN)
            ):
                port_retries -= 1
                _say("another program took the port in the meantime: restarting with other ports")
                continue
            counted = not self.layout.fewest_nodes or self._is_own(first, processes)
            if (pause := restarts.next(first.error, counted)) is None:
                if restarts.repeated:
                    _say("this is the same error at the same step as before: not restarting again")
                return first.status
            attempt += 1
            number = f", restart {attempt} of {self.most_restarts}" if counted else ""
            _say(f"restarting all processes in {pause:g} s{number}")
            self._sleep(pause)
            if self._stopping is not None:
                return 128 + self._stopping

    def _watch(self, processes: Processes) -> list[Failure]:
        """Watch one attempt until all scripts have ended well (return []) or the failed processes are known."""
        spares = {}
        deadline, failures = None, []
        while processes.scripts_left:
            for number in self._take_signals():
                processes.signal(number)
                self._saving |= number == signal.SIGUSR1
                if number in _ENDING:
                    if self._stopping is not None:
                        return failures or [_describe_unwilling(processes, number)]
                    self._stopping, deadline = number, time.monotonic() + self.grace
            trouble = False
            for task, code in processes.wait_for_ended():
                if code == 0 and task.role == "script":
                    continue
                if self._stopping is not None:
                    failures.append(Failure(task.name, how_it_ended(code), time.time(), 1))
                    processes.scripts_left.discard(task.name)
                elif task.role == "spare":
                    restarts = spares.setdefault(task.name, Restarts(self.most_restarts))
                    self._replace(task, code, restarts, processes)
                else:
                    trouble = True
            if self._stopping is None and (trouble or processes.is_failing() or self._silent(processes)):
                return self._settle(processes)
            processes.start_those_due()
            if deadline is not None and time.monotonic() > deadline:
                return failures or [_describe_unwilling(processes, self._stopping or signal.SIGTERM)]
        return failures

    def _is_own(self, first: Failure, processes: Processes) -> bool:
        """Return whether an elastic launch failed by itself, not because machines came or went at varying steps."""
        os.environ[SINCE] = str(first.time)
        if first.status == REJOIN:
            return False
        if not first.of_others and first.status != _SAVED:
            return True
        before, records = self._lost_at, [each.record for each in processes.states()]
        self._lost_at = next((each.position for each in records if each is not None), "")
        return self._lost_at == before

    def _replace(self, task: Task, code: int, restarts: Restarts, processes: Processes) -> None:
        """Restart a task that the others can do without, if restarts are left."""
        if (pause := restarts.next(None)) is None:
            _say(f"{task.name} {how_it_ended(code)}: training continues without it")
        else:
            _say(f"{task.name} {how_it_ended(code)}: restarting it in {pause:g} s")
            processes.start_later(task, pause)

    def _silent(self, processes: Processes) -> bool:
        """Return whether a task has been stopped for too long; a replaceable one is ended and replaced."""
        if not processes.several and self.layout.nnodes == 1:  # nobody waits for it
            return False
        timeout = self.layout.timeout
        for task in processes.find_stopped(_SPARE_SHARE * timeout):
            if task.role == "spare":
                _say(f"{task.name} was stopped (SIGSTOP) for {_SPARE_SHARE * timeout:g} s, and is killed")
                processes.kill(task.name)
        return any(task.role != "spare" for task in processes.find_stopped(timeout + _PATIENCE))

    def _settle(self, processes: Processes) -> list[Failure]:
        """Return the failures, once the failed processes have ended and written their records, or after a short wait."""
        until = time.monotonic() + _SETTLE
        while True:
            processes.wait_for_ended()
            failed = attribute(processes.states(), time.time())
            known = bool(failed) and failed[0].sure and not processes.is_failing()
            if known or self._signals or time.monotonic() > until:
                return failed

    def _report(self, failed: list[Failure], processes: Processes) -> None:
        first, *others = failed
        number = self._stopping
        if number is not None and first.what in (how_it_ended(-number), how_it_ended(128 + number)):
            _say(f"the workers exited after {signal.Signals(number).name}")
            return
        if self.layout.fewest_nodes and first.status in _ELASTIC:
            _say(_ELASTIC[first.status])
            return
        if first.of_others and self.layout.nnodes > 1:
            _say(f"{first.name} lost a worker on another machine: it {first.what}.")
        else:
            _say(f"{first.name} failed first: it {first.what}. The others were stopped.")
        for other in others[:_MOST_OTHERS]:
            _say(f"{other.name} failed too: it {other.what}.")
        if lines := processes.last_lines(first.name):
            _say(f"the last lines of {first.name}:")
            for line in lines:
                _say(f"    {line}")

    def _take_signals(self) -> list[int]:
        taken, self._signals = self._signals, []
        return taken

    def _sleep(self, seconds: float) -> None:
        """Wait, until a signal ends the launcher."""
        until = time.monotonic() + seconds
        while self._stopping is None and time.monotonic() < until:
            time.sleep(0.05)
            self._stopping = next((number for number in self._take_signals() if number in _ENDING), None)


def _describe_unwilling(processes: Processes, number: int) -> Failure:
    """Return the failure of a worker that did not end within its grace period after a signal."""
    what = f"did not exit after {signal.Signals(number).name}"
    return Failure(processes.any_script().name, what, time.time(), 1)


def _say(text: str) -> None:
    for line in text.splitlines():
        print(f"[launch] {plain(line)}", file=sys.stderr, flush=True)
