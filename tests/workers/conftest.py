"""Real worker processes for tests: TF_CONFIG with free ports, bounded waits, ended by process id."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from children import HELPERS, ROOT

from unisono.distribute.launcher.tasks import RequestedCluster, plan

PROGRAMS = Path(__file__).parent / "programs"
QUIET = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}


@dataclasses.dataclass
class Ended:
    """How a worker ended: its exit status (negative: a signal) and its output."""

    code: int
    out: str
    err: str


class Workers:
    """The processes of one cluster. Each runs `programs/<name>.py` with its output directory as first argument.

    `program` is that name, or a list with one name for each worker. Without `forked` each is a new interpreter.
    """

    def __init__(self, forked, program, out, count, replicas, arguments, start, timeout, env):
        layout = RequestedCluster(workers=count, replicas_per_worker=replicas, timeout=timeout)
        names = [program] * count if isinstance(program, str) else program
        self.out, self.processes = out, []
        for index, task in enumerate(plan(layout, [])[: count if start is None else start]):
            words = [PROGRAMS / f"{names[index]}.py", out, *arguments]
            files = {kind: out / f"{index}.{kind}" for kind in ("out", "err")}
            own = {**task.env, **(env or {})}
            if forked is not None:
                self.processes.append(forked.start(*words, folder=ROOT, env=own, **files))
                continue
            with open(files["out"], "w") as standard, open(files["err"], "w") as errors:
                command = [sys.executable, "-u", *map(str, words)]
                streams = {"stdin": subprocess.DEVNULL, "stdout": standard, "stderr": errors}
                process = subprocess.Popen(command, env={**QUIET, **own}, start_new_session=True, **streams)
            self.processes.append(process)

    def wait_for_text(self, index, text):
        """Waits until a worker has printed `text`."""
        has_ended = False
        while text not in self.printed(index):
            assert not has_ended, self.printed(index, "err")
            time.sleep(0.05)
            has_ended = self.processes[index].poll() is not None  # read its output once more

    def printed(self, index, kind="out"):
        return (self.out / f"{index}.{kind}").read_text()

    def kill(self, index, number=signal.SIGKILL):
        self.processes[index].send_signal(number)

    def wait(self):
        """Waits for all workers."""
        codes = [process.wait() for process in self.processes]
        return [Ended(code, self.printed(i), self.printed(i, "err")) for i, code in enumerate(codes)]

    def succeed(self):
        """Waits for all workers; each must end with status 0."""
        ended = self.wait()
        codes = [one.code for one in ended]
        assert not any(codes), f"the workers ended with {codes}:\n" + "\n".join(
            f"--- worker {index}:\n{one.out[-2000:]}\n{one.err[-4000:]}" for index, one in enumerate(ended)
        )
        return ended

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def start_workers(tmp_path, forked):
    """`start_workers(program, count=2, replicas=1, arguments=(), start=None, timeout=600)`: see `Workers`.

    `timeout`: seconds after which a slow worker is an error; the default is never reached, except by tests of timeouts.
    With `anew` each worker is a new interpreter, with its own iteration order of sets.
    """
    started = []

    def start(program, count=2, replicas=1, arguments=(), start=None, timeout=600, env=None, anew=False):
        out = tmp_path / f"run-{len(started)}"
        out.mkdir()
        forks = None if anew else forked
        started.append(Workers(forks, program, out, count, replicas, arguments, start, timeout, env))
        return started[-1]

    yield start
    for workers in started:
        workers.end()


@pytest.fixture
def launch():
    """`launch(*arguments)`: starts `python -m unisono launch ...`; returns the process, which is always ended."""
    started = []

    def run(*arguments, **env):
        process = subprocess.Popen(
            [sys.executable, "-m", "unisono", "launch", *map(str, arguments)],
            env={**QUIET, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        if process.poll() is None:
            process.terminate()  # it ends the workers
        process.communicate()


class Launched:
    """A launcher whose tasks are forks of it, with the `subprocess.Popen` methods that tests use."""

    def __init__(self, forked, arguments, folder):
        self._folder, self._files = folder, {kind: folder / f"launcher.{kind}" for kind in ("out", "err")}
        self._tasks = folder / "tasks"
        self._tasks.mkdir(parents=True)
        env = {"TASKS": str(self._tasks)}
        program = HELPERS / "forking_launcher.py"
        self._child = forked.start(program, *arguments, folder=folder, env=env, **self._files)
        self.pid, self.returncode = self._child.pid, None

    def poll(self):
        self.returncode = self._child.poll()
        return self.returncode

    def printed(self, kind="out"):
        """The output so far."""
        return self._files[kind].read_text() if self._files[kind].exists() else ""

    def communicate(self):
        """Waits for the end; returns the output."""
        self.returncode = self._child.wait()
        return tuple(self._files[kind].read_text() for kind in ("out", "err"))

    def environments(self):
        """The environment variables that every task started with, by process id."""
        return {int(path.name): json.loads(path.read_text()) for path in self._tasks.iterdir()}

    def end(self):
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)  # it ends the workers
            self._child.wait()


@pytest.fixture
def launch_forks(forked, tmp_path):
    """`launch_forks(*arguments)`: like `launch`, for programs that train: no task imports TensorFlow again.

    A slow task is no error: `--timeout` is ten minutes unless the test passes it.
    """
    started = []

    def run(*arguments):
        started.append(
            Launched(forked, ("--timeout", 600, *arguments), tmp_path / f"launched-{len(started)}")
        )
        return started[-1]

    yield run
    for launched in started:
        launched.end()
