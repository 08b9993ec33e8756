"""Programs that each run in a process of their own, forked from one that has imported TensorFlow, Keras and Unisono already.

Importing them takes four seconds; a program that is run in this way sees the same as one that is started anew.
"""

from __future__ import annotations

import json
import os
import pathlib
import runpy
import subprocess
import sys
from typing import Any

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", "MPLBACKEND": "Agg"}


class Forked:
    """Owns the process that forks. Use as a context manager."""

    def __enter__(self) -> Forked:
        environment = {**os.environ, **QUIET}
        environment.pop("TF_CONFIG", None)
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: Any) -> None:
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def run(self, program: pathlib.Path, *arguments: str, folder: pathlib.Path, seconds: int = 240) -> str:
        """Runs a program in `folder`; returns what it printed.

        Raises:
            AssertionError: it failed, or did not end in time.
        """
        output = folder / "printed.txt"
        order = [str(program), [str(argument) for argument in arguments], str(folder), str(output), seconds]
        print(json.dumps(order), file=self._process.stdin, flush=True)
        status = self._process.stdout.readline().strip()
        printed = output.read_text(encoding="utf-8") if output.exists() else ""
        assert status == "0", f"{program} ended with {status}:\n{printed[-6000:]}"
        return printed


def _serve() -> None:
    import unisono  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        program, arguments, folder, output, seconds = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(program, arguments, folder, output, seconds)
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _become(program: str, arguments: list[str], folder: str, output: str, seconds: int) -> None:
    import signal

    signal.alarm(seconds)  # ends the process
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.chdir(folder)
    sys.argv = [program, *arguments]
    sys.path[0] = os.path.dirname(program)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    _serve()
