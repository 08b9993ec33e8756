"""Where to split a chain of blocks so that the slowest stage is as fast as possible: arithmetic only."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence

MemoryOf = Callable[[int, int, int], float]


def balance(
    costs: Sequence[float],
    stages: int,
    cut_costs: Sequence[float] | None = None,
    memory_of: MemoryOf = lambda stage, start, stop: 0.0,
    memory_limit: float | None = None,
) -> list[int]:
    """Return how many blocks each of consecutive stages gets, at least one, so that the costliest stage costs least.

    Among cuts with the same slowest stage it chooses the one with the least communication, then the most even one.
    Dynamic programming over (stages, blocks): K N^2 / 2 comparisons.

    Args:
        costs: of each of the N blocks, in any unit, not negative.
        stages: K, 1 to N.
        cut_costs: N - 1 numbers; the communication of a cut after block i, in any unit; None: 0 everywhere.
        memory_of: `memory_of(stage, start, stop)`: the memory of blocks start to stop - 1 as that stage.
        memory_limit: the maximum memory of one stage, in the same unit; if no cut keeps to it, raise a ValueError.
    """
    blocks = len(costs)
    if not 1 <= stages <= blocks:
        raise ValueError(f"`stages` ({stages}) must be from 1 to the number of blocks ({blocks}).")
    cuts = [0.0] * (blocks - 1) if cut_costs is None else cut_costs
    sums = list(itertools.accumulate(costs, initial=0.0))

    @functools.cache
    def best(stage: int, stop: int) -> tuple[tuple[float, float, float], list[int]] | None:
        """Return ((slowest stage, sent over cuts, sum of squares), sizes) of `stop` blocks in `stage` + 1 stages."""
        found = None
        for start in range(stage, stop) if stage else [0]:
            before = best(stage - 1, start) if stage else ((0.0, 0.0, 0.0), [])
            if before is None or (memory_limit is not None and memory_of(stage, start, stop) > memory_limit):
                continue
            (slowest, sent, squares), sizes = before
            cost = sums[stop] - sums[start]
            value = max(slowest, cost), sent + (cuts[start - 1] if start else 0.0), squares + cost * cost
            if found is None or _better(value, found[0]):
                found = value, [*sizes, stop - start]
        return found

    found = best(stages - 1, blocks)
    if found is None:
        raise ValueError(_too_little_memory(blocks, stages, memory_of, memory_limit))
    return found[1]


def stage_costs(costs: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Return the cost of each stage: the sums of `costs` over consecutive runs of `sizes` blocks."""
    sums = list(itertools.accumulate(costs, initial=0.0))
    edges = itertools.accumulate(sizes, initial=0)
    return [sums[stop] - sums[start] for start, stop in itertools.pairwise(edges)]


def _better(value: tuple[float, float, float], other: tuple[float, float, float]) -> bool:
    """Compare in order; costs that differ only by rounding count as equal."""
    for mine, theirs in zip(value, other):
        if not math.isclose(mine, theirs, rel_tol=1e-9):
            return mine < theirs
    return False


def _too_little_memory(blocks: int, stages: int, memory_of: MemoryOf, limit: float | None) -> str:
    """Name the need of the largest single block: no smaller limit can be met."""
    needed = max(min(memory_of(k, i, i + 1) for k in range(stages)) for i in range(blocks))
    largest = f"the largest block alone needs {needed:.4g}"
    return (
        f"memory_limit ({limit:.4g} bytes) is too small for {stages} stages of {blocks} blocks ({largest}): "
        f"use more devices, more micro_batches, schedule='1f1b' or rematerialize=True"
    )
