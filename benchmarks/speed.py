"""Runs the contestants of one setting in turns, each in a process of its own that lives through all rounds.

While one contestant is measured all others wait, idle. In every round each has its turn, and another one begins, so that
whatever else the machine does, and what the turn before leaves behind, falls on all of them alike.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from .contestants import Contestant
from .contestants.task import Task

PATIENCE = 600.0  # seconds for one answer
SHORT_FIT = {"do": "short", "epochs": 2, "steps": 60}


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: turns of each contestant.
        starts: processes in which the time to the first step is measured.
        steps: steps of an epoch, for each model.
        longest: seconds that an epoch may take; a slower contestant gets shorter ones.
        epochs: epochs of a turn; the first one is left out of the step time.
        short_fits: rounds in which a short fit is measured, the first ones; None: all.
    """

    rounds: int
    starts: int
    steps: dict[str, int]
    longest: float = 2.0
    epochs: int = 3
    short_fits: int | None = None


@dataclasses.dataclass
class Result:
    """What was measured of one contestant in one setting: one number for each round (or start), in seconds or bytes.

    Attributes:
        name: the contestant's.
        skipped: why nothing was measured, or None.
        steps: steps of its epochs.
        values: "step" (steady), "step_of_all" (whole call, the first epoch included), "epoch", "first_step", "import",
            "short_fit", "memory".
    """

    name: str
    skipped: str | None = None
    steps: int = 1
    values: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def add(self, what: str, value: float) -> None:
        """Notes one number."""
        self.values.setdefault(what, []).append(value)


class Lost(Exception):
    """A contestant that failed; the reason in words."""


class Process:
    """The process of a contestant: it is told what to do, a line each time, and waited for no longer than `PATIENCE`."""

    def __init__(self, contestant: Contestant, task: Task) -> None:
        devices = f"--xla_force_host_platform_device_count={task.replicas}"
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115, closed in close()
        self._process = subprocess.Popen(
            [
                *[sys.executable, "-m", f"{__package__}.contestants", contestant.name, contestant.module],
                json.dumps(dataclasses.asdict(task)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={
                **{k: v for k, v in os.environ.items() if k != "UNISONO_CACHE_DIR"},
                "KERAS_BACKEND": "jax" if contestant.jax else "tensorflow",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices} if contestant.jax else {}),
            },
        )

    def answer(self) -> dict[str, Any]:
        """The next line it writes.

        Raises:
            Lost: it failed, ended, or took too long.
        """
        out: Any = self._process.stdout
        ready, _, _ = select.select([out], [], [], PATIENCE)
        if not ready:
            raise Lost(f"no answer in {PATIENCE:.0f} s")
        line = out.readline()
        if not line:
            self._log.seek(0)
            last = self._log.read().strip().splitlines()[-1:] or ["no message"]
            raise Lost(f"its process ended: {last[0][:200]}")
        content = json.loads(line)
        if "error" in content:
            raise Lost(content["error"])
        return content

    def tell(self, order: dict[str, Any]) -> dict[str, Any]:
        """Has it do something; what it answers."""
        stdin: Any = self._process.stdin
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass
        return self.answer()

    def close(self) -> None:
        """Ends it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._log.close()


def measure(
    task: Task, contestants: Iterable[Contestant], plan: Plan, say: Callable[[str], None]
) -> list[Result]:
    """Measures every contestant on `task`; those that cannot take part have the reason in their result."""
    results: list[Result] = []
    running: list[tuple[Process, Result]] = []
    try:
        for contestant in contestants:
            result = Result(contestant.name, contestant.reason_to_skip(task))
            results.append(result)
            if result.skipped is None:
                _start(contestant, task, plan, result, running, say)
        for number in range(plan.rounds):
            say(f"round {number + 1} of {plan.rounds}")
            first = number % max(1, len(running))
            for process, result in running[first:] + running[:first]:
                turn = functools.partial(_turn, process, task, plan, result, number)
                _guarded(result, say, turn)
        for process, result in running:
            _guarded(
                result,
                say,
                lambda process=process, result=result: result.add(
                    "memory", process.tell({"do": "end"})["memory"]
                ),
            )
    finally:
        for process, _ in running:
            process.close()
    return results


def _start(
    contestant: Contestant,
    task: Task,
    plan: Plan,
    result: Result,
    running: list[tuple[Process, Result]],
    say: Callable[[str], None],
) -> None:
    """Starts its process, `plan.starts` times; the last one stays, warmed up."""
    say(f"start {contestant.name}")
    for start in range(plan.starts):
        process = Process(contestant, task)
        last = start == plan.starts - 1
        if last:
            running.append((process, result))
        try:
            _guarded(
                result, say, lambda process=process, last=last: _warm_up(process, task, plan, result, last)
            )
        finally:
            if not last:
                process.close()
        if result.skipped is not None:
            return


def _warm_up(process: Process, task: Task, plan: Plan, result: Result, last: bool) -> None:
    ready = process.answer()
    result.add("import", ready["import"])
    result.add("first_step", ready["first_step"])
    if not last:
        return
    most = plan.steps[task.model]
    few = max(1, most // 10)
    seconds = process.tell({"do": "steady", "epochs": 2, "steps": few})["epochs"][1] / few
    result.steps = max(min(most, 10), min(most, int(plan.longest / seconds)))
    process.tell({"do": "steady", "epochs": 1, "steps": result.steps})


def _turn(process: Process, task: Task, plan: Plan, result: Result, number: int) -> None:
    if plan.short_fits is None or number < plan.short_fits:
        result.add("short_fit", process.tell(SHORT_FIT)["seconds"])
    steps = result.steps
    answer = process.tell({"do": "steady", "epochs": plan.epochs, "steps": steps})
    later = answer["epochs"][1:]
    result.add("step", sum(later) / len(later) / steps)
    result.add("step_of_all", answer["whole"] / len(answer["epochs"]) / steps)
    result.add("epoch", sum(later) / len(later) / steps * plan.steps[task.model])


def _guarded(result: Result, say: Callable[[str], None], measure_it: Callable[[], None]) -> None:
    """Runs a measurement; a contestant that fails takes no further part, and its result says why."""
    if result.skipped is not None:
        return
    try:
        measure_it()
    except Lost as error:
        result.skipped = f"fails: {error}"
        result.values.clear()
        say(f"{result.name} {result.skipped}")
