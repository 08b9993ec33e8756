"""What a pipeline of any size will do: its schedule played with times. No tensors, no clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ..arguments import whole_number
from .schedule import SCHEDULES, Job, needed_by, peak_activations, recomputed


@dataclasses.dataclass(frozen=True)
class Span:
    """One job with its times, in the unit of the costs that were given (seconds, say).

    Attributes:
        stage: int; 0 to K - 1.
        micro_batch: int; 0 to M - 1.
        kind: "forward" or "backward".
        start: float; when the stage begins the job.
        stop: float; when its result is ready on the stage (before it is sent).
    """

    stage: int
    micro_batch: int
    kind: str
    start: float
    stop: float


@dataclasses.dataclass(frozen=True)
class Simulation:
    """What a simulated step does.

    Attributes:
        spans: list of `Span`, sorted by start.
        stages: int; K.
        micro_batches: int; M.
        duration: float; from the first start to the last stop.
        bubble: float, 0 to 1; the part of K times the duration in which a stage does not work.
        speedup: float; the work of all stages one after the other, divided by the duration.
        peak_activations: list of K ints; micro-batches whose activations a stage keeps at one time, at most.
    """

    spans: list[Span]
    stages: int
    micro_batches: int
    duration: float
    bubble: float
    speedup: float
    peak_activations: list[int]


def simulate(
    forward: Sequence[float],
    backward: Sequence[float] | None = None,
    micro_batches: int = 1,
    schedule: str | Sequence[Job] = "gpipe",
    transfer: float | Sequence[float] = 0.0,
    rematerialize: bool = False,
) -> Simulation:
    """Plays one step of a pipeline.

    A stage runs its jobs in the schedule's order, each as soon as its input has arrived. A transfer delays
    the receiver and does not keep the sender from its next job; a cut sends as much backward as forward.

    Args:
        forward: K numbers; the time of one micro-batch's forward pass on each stage.
        backward: K numbers or None; the same of the backward pass; None: twice the forward time.
        micro_batches: int; M, at least 1.
        schedule: "gpipe", "1f1b" or a list of jobs.
        transfer: number or K - 1 numbers; the time that a cut takes to send one micro-batch's boundary.
        rematerialize: bool; whether a backward pass runs the forward pass again first (but for one that directly
            follows its own forward pass and still has the activations).

    Raises:
        ValueError: if an argument has the wrong length or value.
    """
    stages = len(forward)
    if not stages:
        raise ValueError("forward must have a time for at least one stage; received forward=[]")
    micro_batches = whole_number("micro_batches", micro_batches)
    if isinstance(schedule, str) and schedule not in SCHEDULES:
        raise ValueError(f"schedule must be one of {sorted(SCHEDULES)}; received schedule={schedule!r}")
    backward = [2.0 * cost for cost in forward] if backward is None else list(backward)
    cuts = [float(transfer)] * (stages - 1) if isinstance(transfer, int | float) else list(transfer)
    if len(backward) != stages or len(cuts) != stages - 1:
        raise ValueError(
            f"backward ({len(backward)}) must have one time for each of the {stages} stages and transfer "
            f"({len(cuts)}) one for each of the {stages - 1} cuts"
        )
    jobs = SCHEDULES[schedule](stages, micro_batches) if isinstance(schedule, str) else list(schedule)
    costs = {"forward": list(forward), "backward": backward}
    again = {(*job, "backward"): forward[job[0]] for job in recomputed(jobs)} if rematerialize else {}
    return _summarize(_play(jobs, costs, cuts, again), jobs, micro_batches, costs)


def _summarize(
    spans: list[Span], jobs: Sequence[Job], micro_batches: int, costs: dict[str, list[float]]
) -> Simulation:
    stages = len(costs["forward"])
    duration = max(span.stop for span in spans) - min(span.start for span in spans)
    busy = sum(span.stop - span.start for span in spans)
    work = micro_batches * (sum(costs["forward"]) + sum(costs["backward"]))
    return Simulation(
        spans=sorted(spans, key=lambda span: (span.start, span.stage)),
        stages=stages,
        micro_batches=micro_batches,
        duration=duration,
        bubble=1.0 - busy / (stages * duration) if duration else 0.0,
        speedup=work / duration if duration else float(stages),
        peak_activations=peak_activations(jobs),
    )


def _play(
    jobs: Sequence[Job],
    costs: dict[str, list[float]],
    cuts: Sequence[float],
    extra: dict[tuple[int, int, str], float],
) -> list[Span]:
    """Starts every job as soon as its stage is free and what it needs has arrived; `extra` is added to its cost."""
    stages = len(cuts) + 1
    stop_of: dict[tuple[int, int, str], float] = {}
    free = [0.0] * stages
    spans = []
    for job in jobs:
        start, me = free[job.stage], (job.stage, job.micro_batch, job.kind)
        for need in needed_by(*me, stages):
            delay = 0.0 if need[0] == job.stage else cuts[min(need[0], job.stage)]
            start = max(start, stop_of[need] + delay)
        stop = start + costs[job.kind][job.stage] + extra.get(me, 0.0)
        free[job.stage] = stop_of[me] = stop
        spans.append(Span(*me, start, stop))
    return spans


def ideal_speedup(stages: int, micro_batches: int) -> float:
    """M K / (M + K - 1): the speed-up over one device of K equal stages with free transfers."""
    return micro_batches * stages / (micro_batches + stages - 1)
