"""In which order the stages of a pipeline work on the micro-batches: pure lists, no tensors.

A schedule is a list of jobs. In units of one slot (a forward or a backward pass of one micro-batch on one
stage) both schedules here take 2 (M + K - 1) slots for M micro-batches on K stages, of which each stage works
2 M: the bubble is (K - 1) / (M + K - 1). They differ in how long activations are kept: GPipe's keeps those of
all M micro-batches, one-forward-one-backward those of at most K - k on stage k.

Source: Huang et al. 2019, arXiv 1811.06965 (GPipe); Harlap et al. 2018, arXiv 1806.03377 (1F1B).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

Kind = Literal["forward", "backward"]
Order = list[tuple[Kind, int]]


@dataclasses.dataclass(frozen=True)
class Job:
    """One pass of one micro-batch through one stage.

    Attributes:
        slot: int; when the job runs, in slots from 0.
        stage: int; 0 to K - 1.
        micro_batch: int; 0 to M - 1.
        kind: "forward" or "backward".
    """

    slot: int
    stage: int
    micro_batch: int
    kind: Kind


def gpipe(stages: int, micro_batches: int) -> list[Job]:
    """GPipe: all forward passes, then all backward passes, both in the order of the micro-batches."""
    forward: Order = [("forward", m) for m in range(micro_batches)]
    backward: Order = [("backward", m) for m in range(micro_batches)]
    return assign_slots([forward + backward] * stages)


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
    return assign_slots(orders)


SCHEDULES: dict[str, Callable[[int, int], list[Job]]] = {"gpipe": gpipe, "1f1b": one_forward_one_backward}


def forward_only(stages: int, micro_batches: int) -> list[Job]:
    """The schedule of evaluate and predict: M + K - 1 slots."""
    order: Order = [("forward", m) for m in range(micro_batches)]
    return assign_slots([order] * stages)


def assign_slots(orders: Sequence[Order]) -> list[Job]:
    """Gives every job the first slot in which its stage is free and what it needs is there.

    Args:
        orders: for each stage the (kind, micro_batch) pairs in the order in which it works.

    Returns:
        The jobs, sorted by slot, then by stage: an order in which no job precedes one that it needs.

    Raises:
        ValueError: if the orders wait for each other.
    """
    done: dict[tuple[int, int, str], int] = {}
    next_of = [0] * len(orders)
    free = [0] * len(orders)
    jobs: list[Job] = []
    total = sum(len(order) for order in orders)
    while len(jobs) < total:
        before = len(jobs)
        for stage, order in enumerate(orders):
            while next_of[stage] < len(order):
                kind, m = order[next_of[stage]]
                needs = needed_by(stage, m, kind, len(orders))
                if any(need not in done for need in needs):
                    break
                slot = max([free[stage]] + [done[need] + 1 for need in needs])
                done[(stage, m, kind)] = slot
                free[stage] = slot + 1
                next_of[stage] += 1
                jobs.append(Job(slot, stage, m, kind))
        if len(jobs) == before:
            raise ValueError(f"orders must not wait for each other; received orders={list(orders)}")
    return sorted(jobs, key=lambda job: (job.slot, job.stage))


def needed_by(stage: int, micro_batch: int, kind: str, stages: int) -> list[tuple[int, int, str]]:
    """The jobs, as (stage, micro_batch, kind), whose results this one waits for: at most two."""
    if kind == "forward":
        return [(stage - 1, micro_batch, "forward")] if stage else []
    needs = [(stage, micro_batch, "forward")]
    return needs if stage == stages - 1 else [*needs, (stage + 1, micro_batch, "backward")]


def peak_activations(jobs: Sequence[Job]) -> list[int]:
    """For each stage the most micro-batches whose activations it keeps at one time."""
    stages = 1 + max(job.stage for job in jobs)
    live, peak = [0] * stages, [0] * stages
    for job in sorted(jobs, key=lambda job: job.slot):
        live[job.stage] += 1 if job.kind == "forward" else -1
        peak[job.stage] = max(peak[job.stage], live[job.stage])
    return peak


def recomputed(jobs: Sequence[Job]) -> set[tuple[int, int]]:
    """The (stage, micro_batch) pairs whose forward pass is run again when rematerializing.

    A backward pass that directly follows its own forward pass on a stage (the last stage's under 1F1B) uses
    the activations that are still there: they cost no memory beyond the micro-batch that is at work anyway.
    """
    again: set[tuple[int, int]] = set()
    before: dict[int, tuple[str, int]] = {}
    for job in sorted(jobs, key=lambda job: job.slot):
        if job.kind == "backward" and before.get(job.stage) != ("forward", job.micro_batch):
            again.add((job.stage, job.micro_batch))
        before[job.stage] = (job.kind, job.micro_batch)
    return again
