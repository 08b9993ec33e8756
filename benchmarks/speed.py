"""Runs the trainers of one setting in turns; each has its own process for all rounds."""

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
    """The amount of measurements.

    Attributes:
        rounds: rounds; every trainer runs once in each.
        starts: number of processes in which the time to the first step is measured.
        steps: model -> steps of an epoch.
        longest: most seconds of an epoch; a slower trainer gets shorter epochs.
        epochs: epochs of a turn; the step time leaves the first one out.
        short_fits: number of first rounds in which a short fit is measured; None: all.
    """

    rounds: int
    starts: int
    steps: dict[str, int]
    longest: float = 2.0
    epochs: int = 3
    short_fits: int | None = None


@dataclasses.dataclass
class Result:
    """The measurements of one trainer in one setting: one number per round (or start), in seconds or bytes.

    Attributes:
        name: the trainer's name.
        skipped: the reason if nothing was measured, or None.
        steps: steps of its epochs.
        values: "step" (steady), "step_of_all" (whole call, the first epoch included), "epoch", "first_step", "import",
            "short_fit", "memory".
    """

    name: str
    skipped: str | None = None
    steps: int = 1
    values: dict[str, list[float]] = dataclasses.field(default_factory=dict)

    def add(self, what: str, value: float) -> None:
        """Records one number."""
        self.values.setdefault(what, []).append(value)


class Lost(Exception):
    """A trainer failed; the message is the reason."""


class Process:
    """The process of a trainer: it reads one order per line and answers each within `PATIENCE` seconds."""

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
                **os.environ,
                "KERAS_BACKEND": "jax" if contestant.jax else "tensorflow",
                "TF_CPP_MIN_LOG_LEVEL": "3",
                **({"JAX_PLATFORMS": "cpu", "XLA_FLAGS": devices} if contestant.jax else {}),
            },
        )

    def answer(self) -> dict[str, Any]:
        """Reads its next answer.

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

    def send(self, order: dict[str, Any]) -> dict[str, Any]:
        """Sends an order and returns the answer."""
        stdin: Any = self._process.stdin
        try:
            stdin.write(json.dumps(order).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            pass
        return self.answer()

    def close(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._log.close()


def measure(
    task: Task, contestants: Iterable[Contestant], plan: Plan, say: Callable[[str], None]
) -> list[Result]:
    """Measures every trainer on `task`; the result of one that cannot take part has the reason.

    While one trainer runs, the others are idle. Another one begins each round, so that other load on the machine and
    effects of the previous turn fall on all of them alike.
    """
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
                    "memory", process.send({"do": "end"})["memory"]
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
    """Starts its process `plan.starts` times; the last process stays, warmed up."""
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
    seconds = process.send({"do": "steady", "epochs": 2, "steps": few})["epochs"][1] / few
    result.steps = max(min(most, 10), min(most, int(plan.longest / seconds)))
    process.send({"do": "steady", "epochs": 1, "steps": result.steps})


def _turn(process: Process, task: Task, plan: Plan, result: Result, number: int) -> None:
    if plan.short_fits is None or number < plan.short_fits:
        result.add("short_fit", process.send(SHORT_FIT)["seconds"])
    steps = result.steps
    answer = process.send({"do": "steady", "epochs": plan.epochs, "steps": steps})
    later = answer["epochs"][1:]
    result.add("step", sum(later) / len(later) / steps)
    result.add("step_of_all", answer["whole"] / len(answer["epochs"]) / steps)
    result.add("epoch", sum(later) / len(later) / steps * plan.steps[task.model])


def _guarded(result: Result, say: Callable[[str], None], measure_it: Callable[[], None]) -> None:
    """Runs a measurement; a trainer that fails is skipped from then on, and its result has the reason."""
    if result.skipped is not None:
        return
    try:
        measure_it()
    except Lost as error:
        result.skipped = f"fails: {error}"
        result.values.clear()
        say(f"{result.name} {result.skipped}")
