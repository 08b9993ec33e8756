"""Estimate memory, and what accumulation, sharding, half precision or a pipeline would change."""

import dataclasses
from typing import Any

from ..arguments import number, show, truth, whole_number
from ..sharding.sharded import LEVELS

MOST_STAGES = 1024  # of a pipeline: no model has more layers to divide


@dataclasses.dataclass(frozen=True)
class ModelMemory:
    """The bytes that training a model needs on one device."""

    weights: int  # of all weights, including layers' counters and averages
    trained: int  # of the trained weights, and so of their gradients
    optimizer_state: int
    activations: float  # kept for the backward pass, for each sample of the batch
    largest_layer: int = 0  # of the weights of the largest layer
    half_precision: bool = False  # whether layers compute in float16 or bfloat16 already

    def __post_init__(self) -> None:
        """Reject values that are not numbers of bytes."""
        for name, value in vars(self).items():
            truth(name, value) if name == "half_precision" else number(name, value, least=0)


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """One training setup, and its bytes on each device."""

    sharded: str | None  # the level of `unisono.distribute.sharded`
    accumulation: int  # micro-batches whose gradients are summed before each update; 1: none
    half_precision: bool  # whether it needs a half-precision policy that the model does not have yet
    stages: int  # devices over which each copy of the model is split; 1: no pipeline
    samples: int  # that a device processes at once
    weights: int
    gradients: int
    optimizer_state: int
    accumulators: int  # the sums of gradients, with accumulation
    activations: int
    fits: bool  # whether they are at most nine tenths of the device's memory

    @property
    def total(self) -> int:
        """All bytes of a device."""
        return self.weights + self.gradients + self.optimizer_state + self.accumulators + self.activations

    def __str__(self) -> str:
        """Say its changes, such as "accumulation 2, sharded optimizer"."""
        values = {"accumulation": self.accumulation, "pipeline": self.stages, "sharded": self.sharded}
        return (
            ", ".join(f"{name} {values.get(name, '')}".strip() for name in sorted(self.changes))
            or "unchanged"
        )

    @property
    def changes(self) -> frozenset[str]:
        """The techniques that it adds to plain data parallelism."""
        used = {**vars(self), "accumulation": self.accumulation > 1, "pipeline": self.stages > 1}
        return frozenset(n for n in ("sharded", "half_precision", "accumulation", "pipeline") if used[n])


def memory_plans(
    model: ModelMemory, memory_bytes: float, global_batch_size: int, replicas: int = 1
) -> list[MemoryPlan]:
    """List each `MemoryPlan` with which a model fits devices of this size, beginning with the smallest changes.

    Sharded state and accumulation come first, because they keep every number. Half precision changes numbers within its
    rounding, and a pipeline leaves devices idle. The first is plain data parallelism; if it does not fit, the minimal setups
    that fit `replicas` devices of `memory_bytes` follow. `model` comes from `unisono.model_memory`.

    Examples:
        >>> needed = unisono.model_memory(model)
        >>> unisono.distribute.memory_plans(needed, memory_bytes=1e9, global_batch_size=64)[0].fits
        True
    """
    if not isinstance(model, ModelMemory):
        raise ValueError(f"`model` must come from `unisono.model_memory`. Received: {show(model)}")
    number("memory_bytes", memory_bytes, above=0)
    samples = whole_number("global_batch_size", global_batch_size)
    replicas = whole_number("replicas", replicas)
    levels = (None, *LEVELS) if replicas > 1 else (None,)
    halves = (False,) if model.half_precision else (False, True)
    parts = [2**n for n in range((-(-samples // replicas)).bit_length())]
    pipes = [n for n in range(2, min(replicas, MOST_STAGES) + 1) if replicas % n == 0]
    setups = [(h, level, n, 1) for h in halves for level in levels for n in parts]
    setups += [(half, None, 1, stages) for half in halves for stages in pipes]
    plans, found = [plan_memory(model, memory_bytes, samples, replicas, *setup) for setup in setups], []
    cost = lambda p: (p.stages, p.half_precision, p.sharded == "weights", len(p.changes))  # noqa: E731
    for plan in sorted(plans, key=cost):
        if plan.fits and not any(other.changes <= plan.changes for other in found):
            found.append(plan)
    return found if plans[0].fits else [plans[0], *found]


def plan_memory(
    model: ModelMemory, memory: float, samples: int, replicas: int,
    half: bool = False, sharded: str | None = None, accumulation: int = 1, stages: int = 1,
) -> MemoryPlan:  # fmt: skip
    """Count the bytes of each of N replicas, for W bytes of weights, T of them trained, and S of optimizer state.

    Weights, gradients, state and, if used, accumulators take W, T, S and T. Sharding divides by N: "optimizer" all but the
    weights, "weights" all, plus the two largest layers, which are full-size at a time. A pipeline over K devices divides by
    K. Activations are those of one micro-batch, with 1F1B of K; half precision halves them, and keeps a copy of the weights.
    Source: Rajbhandari et al. 2020, arXiv 1910.02054.
    """
    level = (None, *LEVELS).index(sharded)

    def part(size: float, least: int, layers: int = 0) -> float:
        return size / stages if level < least else min(size, size / (replicas // stages) / stages + layers)

    of_copy = -(-samples // (replicas // stages))
    at_once = -(-of_copy // (accumulation if stages == 1 else min(of_copy, 4 * stages)))
    activations = model.activations * min(of_copy, at_once * stages) / stages
    if half:
        activations = activations / 2 + (model.trained / 2 / stages if level < 2 else 0)
    weights = part(model.weights, 2, 2 * model.largest_layer)
    gradients = part(model.trained, 1, 2 * model.largest_layer)
    state, accumulators = part(model.optimizer_state, 1), part(model.trained, 1) * (accumulation > 1)
    sizes: Any = [round(size) for size in (weights, gradients, state, accumulators, activations)]
    fits = sum(sizes) <= 0.9 * memory  # kernels need some, and the allocator loses some
    return MemoryPlan(sharded, accumulation, half, stages, at_once, *sizes, fits)  # pyright: ignore
