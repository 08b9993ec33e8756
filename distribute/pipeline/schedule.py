"""The order and the times in which the stages of a pipeline process the micro-batches: pure lists, no tensors, no clock."""

import collections
import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Literal

from ..arguments import one_of, whole_number

Kind = Literal["forward", "backward"]
Order = list[tuple[Kind, int]]  # the (kind, micro-batch) pairs of one stage, in order


@dataclasses.dataclass(frozen=True)
class Job:
    """One pass of one micro-batch through one stage."""

    stage: int  # 0 to K - 1
    micro_batch: int  # 0 to M - 1
    kind: Kind
    start: float  # when the stage begins the job: in passes in a schedule, in the unit of the costs in a simulation
    stop: float  # when its result is ready on the stage (before it is sent)


def gpipe(stages: int, micro_batches: int) -> list[Job]:
    """GPipe: all forward passes, then all backward passes, both in the order of the micro-batches."""
    forward: Order = [("forward", m) for m in range(micro_batches)]
    backward: Order = [("backward", m) for m in range(micro_batches)]
    return time_jobs([forward + backward] * stages)


def one_forward_one_backward(stages: int, micro_batches: int) -> list[Job]:
    """1F1B: stage k runs min(M, K - k) forward passes, then one backward and one forward pass in turn."""
    orders: list[Order] = []
    for stage in range(stages):
        ahead = min(micro_batches, stages - stage)
        order: Order = [("forward", m) for m in range(ahead)]
        for m in range(micro_batches):
            order.append(("backward", m))
            if m + ahead < micro_batches:
                order.append(("forward", m + ahead))
        orders.append(order)
    return time_jobs(orders)


SCHEDULES: dict[str, Callable[[int, int], list[Job]]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def forward_only(stages: int, micro_batches: int) -> list[Job]:
    """Return the schedule of evaluate and predict: M + K - 1 passes long."""
    order: Order = [("forward", m) for m in range(micro_batches)]
    return time_jobs([order] * stages)


def time_jobs(
    orders: Sequence[Order],
    costs: dict[Kind, Sequence[float]] | None = None,
    transfers: Sequence[float] | None = None,
    repeated: Collection[tuple[int, int]] = (),
) -> list[Job]:
    """Return the jobs, each as soon as its stage is free and its inputs have arrived, sorted by start, then by stage.

    So every job follows the jobs that it depends on. Raise a ValueError for orders that wait for each other.

    Args:
        orders: of each stage.
        costs: for "forward" and "backward" the time on each stage; None: 1.
        transfers: K - 1 times of sending a result over a cut; None: 0.
        repeated: (stage, micro_batch) pairs whose backward pass first reruns the forward pass.
    """
    stages = len(orders)
    costs = costs or {"forward": [1] * stages, "backward": [1] * stages}
    transfers = [0] * (stages - 1) if transfers is None else transfers
    left = [collections.deque(order) for order in orders]
    free: list[float] = [0] * stages
    stop_of: dict[tuple[int, int, str], float] = {}
    jobs: list[Job] = []
    while any(left):
        before = len(jobs)
        for stage, order in enumerate(left):
            while order:
                kind, m = order[0]
                needs = find_needed(stage, m, kind, stages)
                if any(need not in stop_of for need in needs):
                    break
                order.popleft()
                arrivals = [
                    stop_of[need] + (0 if need[0] == stage else transfers[min(need[0], stage)])
                    for need in needs
                ]
                start = max([free[stage], *arrivals])
                again = costs["forward"][stage] if kind == "backward" and (stage, m) in repeated else 0
                free[stage] = stop_of[stage, m, kind] = start + costs[kind][stage] + again
                jobs.append(Job(stage, m, kind, start, free[stage]))
        if len(jobs) == before:
            raise ValueError(f"`orders` must not make stages wait for each other. Received: {list(orders)}")
    return sorted(jobs, key=lambda job: (job.start, job.stage))


def find_needed(stage: int, micro_batch: int, kind: str, stages: int) -> list[tuple[int, int, str]]:
    """Return the jobs, as (stage, micro_batch, kind), that this one waits for: at most two."""
    if kind == "forward":
        return [(stage - 1, micro_batch, "forward")] if stage else []
    needs = [(stage, micro_batch, "forward")]
    return needs if stage == stages - 1 else [*needs, (stage + 1, micro_batch, "backward")]


def peak_activations(jobs: Sequence[Job]) -> list[int]:
    """Return for each stage the peak number of micro-batches with kept activations."""
    stages = 1 + max(job.stage for job in jobs)
    live, peak = [0] * stages, [0] * stages
    for job in jobs:
        live[job.stage] += 1 if job.kind == "forward" else -1
        peak[job.stage] = max(peak[job.stage], live[job.stage])
    return peak


def find_rematerialized(jobs: Sequence[Job]) -> set[tuple[int, int]]:
    """Return the (stage, micro_batch) pairs whose forward pass runs a second time with rematerialization.

    A backward pass that directly follows its own forward pass on a stage (the last stage's under 1F1B) uses the existing
    activations: they cost no memory beyond that of the current micro-batch.
    """
    again: set[tuple[int, int]] = set()
    before: dict[int, tuple[str, int]] = {}
    for job in jobs:
        if job.kind == "backward" and before.get(job.stage) != ("forward", job.micro_batch):
            again.add((job.stage, job.micro_batch))
        before[job.stage] = (job.kind, job.micro_batch)
    return again


@dataclasses.dataclass(frozen=True)
class Simulation:
    """A simulated step.

    Attributes:
        spans: list of `Job`, sorted by start.
        stages: int; K.
        micro_batches: int; M.
        duration: float; until the last job stops.
        bubble: float, 0 to 1; the idle share of all stages' time.
        speedup: float; the total work of all stages, divided by the duration.
        peak_activations: list of K ints; for each stage the peak number of micro-batches with kept activations.
    """

    spans: list[Job]
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
    """Simulate one step of a pipeline.

    If each pass of a micro-batch on a stage takes one unit, M micro-batches on K stages take 2 (M + K - 1) units, and
    the bubble is (K - 1) / (M + K - 1), in both schedules. GPipe keeps the activations of all M, 1F1B of at most K - k
    on stage k.

    Source: Huang et al. 2019, arXiv 1811.06965 (GPipe); Harlap et al. 2018, arXiv 1806.03377 (1F1B).

    A stage runs its jobs in the schedule's order, each as soon as its input has arrived. A transfer delays the receiver but
    does not block the sender; a cut sends as much backward as forward.

    Args:
        forward: K numbers; the time of one micro-batch's forward pass on each stage.
        backward: K numbers or None; the time of its backward pass; None: twice the forward time.
        micro_batches: int; M, at least 1.
        schedule: "gpipe", "1f1b" or a list of jobs.
        transfer: number or K - 1 numbers; the time to send one micro-batch over a cut.
        rematerialize: bool; whether a backward pass first reruns the forward pass (except one that directly follows its own
            forward pass and still has the activations).

    Raises:
        ValueError: an argument has the wrong length or value.
    """
    stages = len(forward)
    if not stages:
        raise ValueError("`forward` must have a time for at least one stage. Received: []")
    micro_batches = whole_number("micro_batches", micro_batches)
    costs: dict[Kind, Sequence[float]] = {
        "forward": forward,
        "backward": [2.0 * cost for cost in forward] if backward is None else backward,
    }
    cuts = [float(transfer)] * (stages - 1) if isinstance(transfer, int | float) else list(transfer)
    if len(costs["backward"]) != stages or len(cuts) != stages - 1:
        raise ValueError(
            f"`backward` ({len(costs['backward'])}) must have one time for each of the {stages} stages and `transfer` "
            f"({len(cuts)}) one for each of the {stages - 1} cuts."
        )
    if isinstance(schedule, str):
        schedule = SCHEDULES[one_of("schedule", schedule, sorted(SCHEDULES))](stages, micro_batches)
    orders: list[Order] = [
        [(job.kind, job.micro_batch) for job in schedule if job.stage == k] for k in range(stages)
    ]
    jobs = time_jobs(orders, costs, cuts, find_rematerialized(schedule) if rematerialize else ())
    duration = max(job.stop for job in jobs)
    busy = sum(job.stop - job.start for job in jobs)
    work = micro_batches * (sum(costs["forward"]) + sum(costs["backward"]))
    return Simulation(
        spans=jobs,
        stages=stages,
        micro_batches=micro_batches,
        duration=duration,
        bubble=1.0 - busy / (stages * duration) if duration else 0.0,
        speedup=work / duration if duration else float(stages),
        peak_activations=peak_activations(schedule),
    )
