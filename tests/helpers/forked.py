"""Runs programs in separate processes, forked from one that has already imported TensorFlow, Keras and Unisono.

Importing them takes five seconds of CPU time. A forked program behaves like a newly started one, with one exception:
all of them iterate over sets of strings in the same order (PYTHONHASHSEED).
"""

from __future__ import annotations

import gc
import json
import os
import pathlib
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from typing import Any

from children import import_tested_tree

AS_FOR_USERS = ("parameter_servers.py",)
"""The programs that need what users have; see `cheap_graphs`."""
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}


class Child:
    """A running program, with the `subprocess.Popen` methods that tests use."""

    def __init__(self, forked: Forked, number: int, pid: int) -> None:
        self._forked, self._number, self.pid = forked, number, pid

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        self._forked.listen(0)
        return self._forked.statuses.get(self._number)

    def wait(self, timeout: float = float("inf")) -> int:
        """Waits for the end; subprocess.TimeoutExpired if it does not come in time."""
        until = time.monotonic() + timeout
        while self._number not in self._forked.statuses:
            left = until - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self._forked.listen(min(left, 60.0))
        return self._forked.statuses[self._number]

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


class Forks:
    """Owns a process that imports everything once, and forks one for each `Forked` that connects to its Unix socket."""

    def __init__(self) -> None:
        self._folder = tempfile.mkdtemp(prefix="unisono-forks-")
        self.address = os.path.join(self._folder, "socket")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.address)
            listener.listen()
            self._process = _started("connections", listener.fileno(), stdin=subprocess.PIPE)

    def close(self) -> None:
        """Ends the process, once the processes it forked no longer need it."""
        self._process.communicate(timeout=60)
        shutil.rmtree(self._folder)


def _started(*arguments: Any, stdin: int) -> subprocess.Popen[bytes]:
    """Starts this file in a new interpreter, which keeps the given descriptors open."""
    environment = {**os.environ, **QUIET}
    environment.pop("TF_CONFIG", None)
    import_tested_tree(environment)
    kept = [each for each in arguments if isinstance(each, int)]
    command = [sys.executable, __file__, *map(str, arguments)]
    return subprocess.Popen(command, env=environment, pass_fds=kept, stdin=stdin)


class Forked:
    """A context manager that owns the process that forks: itself forked from here, or from `Forks` at an address."""

    def __init__(self, here: bool = False, forks: str | None = None) -> None:
        self._here, self._forks = here, forks
        self._process: subprocess.Popen[bytes] | None = None
        self._count, self._rest = 0, b""
        self._pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}

    def __enter__(self) -> Forked:
        if self._forks is not None:
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(self._forks)
            self._orders = connection.detach()
            self._answers = os.dup(self._orders)
            return self
        orders, answers = os.pipe(), os.pipe()
        if not self._here:
            self._process = _started("pipes", orders[0], answers[1], stdin=subprocess.DEVNULL)
        else:
            _import_everything()
            if os.fork() == 0:
                os.close(orders[1])
                os.close(answers[0])
                _serve_and_exit(orders[0], answers[1])
        os.close(orders[0])
        os.close(answers[1])
        self._orders, self._answers = orders[1], answers[0]
        return self

    def __exit__(self, *_: Any) -> None:
        os.close(self._orders)  # the process kills its running children and ends
        os.close(self._answers)
        if self._process is not None:
            self._process.wait(60)

    def start(
        self,
        program: pathlib.Path,
        *arguments: Any,
        folder: pathlib.Path,
        out: pathlib.Path,
        err: pathlib.Path | None = None,
        env: Mapping[str, str] | None = None,
        seconds: int = 290,
    ) -> Child:
        """Starts a program in `folder`, which appends its output to `out`, and its errors to `err` if given.

        SIGALRM ends it after `seconds`, shortly before the test would time out.
        """
        self._count += 1
        words = [str(program), *map(str, arguments)]
        files = [str(out), str(err or out)]
        order = {"number": self._count, "words": words, "folder": str(folder), "files": files}
        order.update(env=dict(env or {}), seconds=seconds)
        os.write(self._orders, json.dumps(order).encode() + b"\n")
        while self._count not in self._pids:
            self.listen(60)
        return Child(self, self._count, self._pids[self._count])

    def run(self, program: pathlib.Path, *arguments: Any, folder: pathlib.Path) -> str:
        """Runs a program in `folder` to its end; returns its output. An AssertionError if it failed."""
        output = folder / "printed.txt"
        child = self.start(program, *arguments, folder=folder, out=output)
        status = child.wait()
        printed = output.read_text(encoding="utf-8")
        assert status == 0, f"{program} ended with {status}:\n{printed[-6000:]}"
        return printed

    def listen(self, seconds: float) -> None:
        """Reads the messages of the forking process for up to some seconds; returns after the first ones."""
        if not select.select([self._answers], [], [], seconds)[0]:
            return
        said = os.read(self._answers, 1 << 16)
        assert said, "the forking process has ended"
        *lines, self._rest = (self._rest + said).split(b"\n")
        for line in lines:
            what, number, value = line.split()
            (self._pids if what == b"started" else self.statuses)[int(number)] = int(value)


# From here on: the forking process and its children.


def _serve(orders: int, answers: int) -> None:
    """Handles orders until their pipe closes. Also returns in every child, so that a child ends like any program."""
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running, rest = {}, b""
    while True:
        ready, _, _ = select.select([orders, ended], [], [])
        if ended in ready:
            os.read(ended, 1 << 10)
            for pid, status in _ends(running):
                os.write(answers, b"ended %d %d\n" % (running.pop(pid), status))
        if orders in ready:
            said = os.read(orders, 1 << 16)
            if not said:
                break
            *lines, rest = (rest + said).split(b"\n")
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for file in (orders, answers, ended, wake):
                        os.close(file)
                    _become(**order)
                    return
                running[pid] = order["number"]
                os.write(answers, b"started %d %d\n" % (order["number"], pid))
    for pid in running:
        os.kill(pid, signal.SIGKILL)


def _serve_and_exit(orders: int, answers: int) -> None:
    """As `_serve` inside a program whose own error handlers must not run in the children."""
    status = 1
    try:
        _serve(orders, answers)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ends(running: dict[int, int]) -> list[tuple[int, int]]:
    """The children that have ended, with their statuses."""
    ends = []
    while len(ends) < len(running):
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            break
        ends.append((pid, os.waitstatus_to_exitcode(status)))
    return ends


def _become(
    number: int, words: list[str], folder: str, files: list[str], env: dict[str, str], seconds: int
) -> None:
    """Runs the program in this process."""
    import random

    import numpy as np
    from cheap_graphs import as_for_users

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background processes of a shell ignore it
    signal.alarm(seconds)  # ends the process
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream, file in zip((1, 2), files):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), stream)
    sys.stdout.reconfigure(line_buffering=True)
    os.chdir(folder)
    os.environ.update(env)
    random.seed()  # two newly started programs do not share a state either
    np.random.seed()
    as_for_users(os.path.basename(words[0]) in AS_FOR_USERS)
    sys.argv = words
    sys.path[0] = os.path.dirname(words[0])
    runpy.run_path(words[0], run_name="__main__")


def _import_everything() -> None:
    gc.disable()
    import cheap_graphs  # noqa: F401  and with it TensorFlow, before unisono, which looks whether it is there

    import unisono.callbacks
    import unisono.distribute
    import unisono.trainer  # noqa: F401

    gc.freeze()  # spares the garbage collector of every child a million objects
    gc.enable()


def _serve_connections(listener: int) -> None:
    """Forks a serving process for each connection until standard input closes. Imports before the first connection."""
    imported = False
    with socket.socket(fileno=listener) as waiting:
        while sys.stdin not in select.select([waiting, sys.stdin], [], [])[0]:
            if not imported:
                _import_everything()
                imported = True
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
            connection = waiting.accept()[0].detach()
            if os.fork() == 0:
                waiting.close()
                _serve(connection, os.dup(connection))
                return
            os.close(connection)


if __name__ == "__main__":
    kind, *files = sys.argv[1:]
    if kind == "connections":
        _serve_connections(int(files[0]))
    else:
        _import_everything()
        _serve(*map(int, files))
