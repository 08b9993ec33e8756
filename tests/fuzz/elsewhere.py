"""Runs a case in two runs, of which the second resumes the first, or on several workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import keras
import numpy as np
from helpers import Stop, StopAt

import unisono
from unisono.distribute.launcher.tasks import RequestedCluster, plan

from .case import Case, written
from .run import Numbers, run, strategy_of

SECONDS = 240  # until a worker must have ended


def run_and_resume(case: Case) -> Numbers:
    """Interrupts the program halfway, and resumes it on `case.resume` replicas."""
    steps = -(-case.rows // case.batch) * case.epochs
    resumed_on = None if case.resume == 1 else strategy_of(f"mirrored {case.resume}")
    with tempfile.TemporaryDirectory() as folder:
        with contextlib.suppress(Stop):
            run(case, unisono, strategy_of(case.strategy), [_backup(folder), StopAt((steps + 1) // 2)])
        return run(case, unisono, resumed_on, [_backup(folder)])


def _backup(folder: str) -> keras.callbacks.Callback:
    return unisono.callbacks.BackupAndRestore(folder, save_freq=1, background=False)


def run_on_workers(case: Case) -> Numbers:
    """The results of the first worker; `unequal` lists those that are not bitwise identical on another worker."""
    count = int(case.strategy.split()[1])
    with tempfile.TemporaryDirectory() as folder:
        found = _start_and_wait(case, count, Path(folder))
    first, *others = found
    same = ("weights/", "slots/", "history/", "evaluate/")
    unequal = [
        name
        for name in first
        if name.startswith(same) and any(first[name].tobytes() != other[name].tobytes() for other in others)
    ]
    return Numbers(first, unequal)


def _start_and_wait(case: Case, count: int, folder: Path) -> list[dict[str, np.ndarray]]:
    processes, logs = [], [folder / f"{index}.txt" for index in range(count)]
    for index, task in enumerate(
        plan(RequestedCluster(workers=count, replicas_per_worker=1, timeout=60), [])
    ):
        command = [sys.executable, "-m", "tests.fuzz.worker", written(case), str(folder / f"{index}.npz")]
        environment = {**os.environ, **task.env, "CUDA_VISIBLE_DEVICES": ""}
        with logs[index].open("w") as log:
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            processes.append(subprocess.Popen(command, env=environment, **streams))
    try:
        for process, log in zip(processes, logs):
            if process.wait(SECONDS) != 0:
                raise RuntimeError(f"a worker ended with {process.returncode}:\n{log.read_text()[-3000:]}")
    finally:
        for process in processes:
            process.kill()
            process.wait(10)
    return [dict(np.load(folder / f"{index}.npz")) for index in range(count)]
