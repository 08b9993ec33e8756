"""`python -m unisono launch` with forked tasks: `forking_launcher.py ARGUMENTS`, run with `forked`.

The launcher, pipes, process groups and signals are real. Only the tasks are not new interpreters, which would
take five seconds each to import TensorFlow. `TASKS` has one file for each task with the environment it found.
`NAMESPACE` names the network namespace of the launcher and its tasks, for one that is not the network of this machine.
"""

from __future__ import annotations

import atexit
import ctypes
import json
import os
import runpy
import signal
import subprocess
import sys
import threading
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from unisono.commands import main
from unisono.distribute.launcher import processes
from unisono.distribute.launcher.supervisor import PASSED_ON


class Task:
    """A fork, with the parts of `subprocess.Popen` that the launcher uses."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], preexec_fn: Any, **_: Any) -> None:
        pipes = os.pipe(), os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _end_with(lambda: _become(command, env, preexec_fn, [write for _, write in pipes]))
        for _, write in pipes:
            os.close(write)
        self.stdout, self.stderr = (os.fdopen(read, "rb", 0) for read, _ in pipes)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, if it still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(command: Sequence[str], env: Mapping[str, str], preexec_fn: Any, streams: Sequence[int]) -> None:
    """Runs the program of a command in this process."""
    os.setsid()
    preexec_fn()
    weakref.finalize._registry.clear()  # pyright: ignore[reportAttributeAccessIssue]  folders are the launcher's to remove
    for number in (*PASSED_ON, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    for stream, file in zip((1, 2), streams):
        os.dup2(file, stream)
    os.environ.clear()
    os.environ.update(env)
    Path(env["TASKS"], str(os.getpid())).write_text(json.dumps(dict(env)))
    program, *arguments = command[2:]  # without the interpreter and -u
    if program == "-m":
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        return
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


def _end_with(program: Callable[[], None]) -> None:
    """Ends this process as an interpreter would at the end of its program."""
    code = 0
    try:
        program()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # pyright: ignore[reportArgumentType]
        code = 1
    try:
        threading._shutdown()  # pyright: ignore[reportAttributeAccessIssue]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _enter_namespace(name: str) -> None:
    """Moves this thread, and what it starts from now on, into a network namespace that `ip netns` has made."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{name}") as namespace:
        if libc.setns(namespace.fileno(), 0) != 0:
            raise OSError(ctypes.get_errno(), f"the network namespace {name!r} cannot be entered")


if __name__ == "__main__":
    if "NAMESPACE" in os.environ:
        _enter_namespace(os.environ["NAMESPACE"])
    processes.subprocess = types.SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        Popen=Task, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL
    )
    sys.exit(main(["launch", *sys.argv[1:]]))
