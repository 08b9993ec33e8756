"""Chooses among accumulation, sharded state, half precision and a pipeline, so that training fits into device memory."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any

from ..arguments import number, shown, truth, whole_number
from ..sharding.sharded import LEVELS
from .device_memory import in_words

_WORKSPACE = 0.9  # usable share of the memory: kernels need some, and the allocator loses some
_LEVELS = (None, *LEVELS)
_MICRO_BATCHES = 4  # for each stage of a pipeline: the bubble stays below a fifth


@dataclasses.dataclass(frozen=True)
class ModelMemory:
    """The memory that training a model needs on one device.

    Attributes:
        weights: int; bytes of all weights, including layers' counters and averages.
        trained: int; bytes of the trained weights, and so of their gradients.
        optimizer_state: int; bytes of the optimizer state.
        activations: float; bytes kept for the backward pass, for each sample of the batch.
        always: float; bytes kept for it that do not depend on the batch, such as half-precision copies of the weights.
        largest_layer: int; bytes of the weights of the largest layer.
        vectors: int; bytes of the weights of rank one and less, which are never sharded.
        half_precision: bool; whether layers compute in float16 or bfloat16 already.
    """

    weights: int
    trained: int
    optimizer_state: int
    activations: float
    always: float = 0.0
    largest_layer: int = 0
    vectors: int = 0
    half_precision: bool = False

    def __post_init__(self) -> None:
        """Rejects values that are not numbers of bytes."""
        for name, value in vars(self).items():
            truth(name, value) if name == "half_precision" else number(name, value, least=0)


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """One training setup, and its bytes on each device.

    Attributes:
        sharded: str or None; the level of `unisono.distribute.sharded`.
        accumulation: int; micro-batches whose gradients are summed before each update; 1: none.
        half_precision: bool; whether it needs a half-precision policy that the model does not have yet.
        stages: int; devices over which each copy of the model is split; 1: no pipeline.
        samples: int; samples that a device processes at once.
        weights: int; bytes of the weights.
        gradients: int; bytes of the gradients.
        optimizer_state: int; bytes of the optimizer state.
        accumulators: int; bytes of the sums of gradients, with accumulation.
        activations: int; bytes of the activations.
        fits: bool; whether they are at most nine tenths of the device's memory.
    """

    sharded: str | None
    accumulation: int
    half_precision: bool
    stages: int
    samples: int
    weights: int
    gradients: int
    optimizer_state: int
    accumulators: int
    activations: int
    fits: bool

    @property
    def total(self) -> int:
        """All bytes of a device."""
        return self.weights + self.gradients + self.optimizer_state + self.accumulators + self.activations

    @property
    def changes(self) -> frozenset[str]:
        """The techniques that it adds to plain data parallelism."""
        used = {
            "sharded": self.sharded is not None,
            "accumulation": self.accumulation > 1,
            "half_precision": self.half_precision,
            "pipeline": self.stages > 1,
        }
        return frozenset(name for name, value in used.items() if value)


def memory_plans(
    model: ModelMemory, memory_bytes: float, global_batch_size: int, replicas: int = 1
) -> list[MemoryPlan]:
    """The setups with which a model fits devices of this size, those with the smallest changes first.

    Sharded state and accumulation come first, because they keep every number. Half precision changes numbers within its
    rounding, and a pipeline leaves devices idle in its bubble.

    Args:
        model: its memory on one device, from `unisono.model_memory`.
        memory_bytes: float; of the smallest device.
        global_batch_size: int; samples of a step.
        replicas: int; devices in all.

    Returns:
        A list of `MemoryPlan`. The first is plain data parallelism. If that does not fit, the minimal setups that fit
        follow; if none follows, the model does not fit at all.

    Raises:
        ValueError: an argument is out of its range.

    Examples:
        >>> needed = unisono.model_memory(model)
        >>> unisono.distribute.memory_plans(needed, memory_bytes=1e9, global_batch_size=64)[0].fits
        True
    """
    if not isinstance(model, ModelMemory):
        raise ValueError(
            f"`model` must be a `ModelMemory`, as from `unisono.model_memory`. Received: {shown(model)}"
        )
    number("memory_bytes", memory_bytes, above=0)
    samples = whole_number("global_batch_size", global_batch_size)
    replicas = whole_number("replicas", replicas)
    as_it_is = _plan(model, memory_bytes, samples, replicas)
    if as_it_is.fits:
        return [as_it_is]
    found: list[MemoryPlan] = []
    for plan in sorted(_candidates(model, memory_bytes, samples, replicas), key=_cost):
        if plan.changes and plan.fits and not any(other.changes <= plan.changes for other in found):
            found.append(plan)
    return [as_it_is, *found]


def less_memory(
    model: ModelMemory,
    samples: int,
    replicas: int = 1,
    level: str | None = None,
    accumulates: bool = False,
    stages: int = 1,
) -> str:
    """The options that would save memory, with estimates, the most helpful first, in one paragraph.

    `samples` are those of one replica, and `level` is the present level of sharding. `accumulates`: gradients are
    accumulated over several calls already.
    """
    state = dataclasses.replace(model, activations=0.0, always=0.0)

    def at(level: str | None) -> MemoryPlan:
        accumulation = 1 + accumulates
        return _plan(state, float("inf"), 2 * replicas, replicas, sharded=level, accumulation=accumulation)

    now, activations = at(level), model.activations * samples
    saved: list[tuple[float, str]] = []
    if samples > 1:
        parts = min(4, samples)
        gained = activations * (1 - 1 / parts) - (0 if accumulates else now.gradients)
        saved.append((activations / 2, "half the batch"))
        saved.append(
            (
                gained,
                f"{parts} micro-batches in turn (gradient_accumulation_steps={parts}, the batch / {parts})",
            )
        )
    if not model.half_precision:
        saved.append((activations / 2, "a policy of half precision (mixed_bfloat16 or mixed_float16)"))
    for other in LEVELS if replicas > 1 and stages == 1 else ():
        name = (
            f'state sharded over {replicas} replicas (unisono.distribute.sharded(strategy, level="{other}"))'
        )
        saved.append((now.total - at(other).total, name))
    cut_model = f"a pipeline over {2 * stages} devices (unisono.distribute.Pipeline)"
    saved.append(((model.weights + model.trained + model.optimizer_state) / 2, cut_model))
    helpful = sorted((pair for pair in saved if pair[0] > 0), reverse=True)
    options = "; ".join(f"{name}: about {in_words(amount)} less" for amount, name in helpful)
    return (
        f"Of a replica's memory, weights take {in_words(now.weights)}, gradients {in_words(now.gradients)}, the "
        f"optimizer state {in_words(now.optimizer_state)}, and the activations of {samples} samples about "
        f"{in_words(activations)}. Options that need less: {options}."
    )


def _candidates(model: ModelMemory, memory: float, samples: int, replicas: int) -> Iterator[MemoryPlan]:
    plan = functools.partial(_plan, model, memory, samples, replicas)
    of_replica = -(-samples // replicas)
    steps = [2**n for n in range(of_replica.bit_length())]
    levels = _LEVELS if replicas > 1 else (None,)
    for half in (False,) if model.half_precision else (False, True):
        for level, accumulation in itertools.product(levels, steps):
            yield plan(sharded=level, accumulation=accumulation, half_precision=half)
        for stages in (n for n in range(2, replicas + 1) if replicas % n == 0):
            for level in (None, "optimizer") if stages < replicas else (None,):
                yield plan(sharded=level, half_precision=half, stages=stages)


def _plan(
    model: ModelMemory,
    memory: float,
    samples: int,
    replicas: int,
    *,
    sharded: str | None = None,
    accumulation: int = 1,
    half_precision: bool = False,
    stages: int = 1,
) -> MemoryPlan:
    """The memory of one setup.

    Bytes of a replica, for a model with W bytes of weights, T of them trained, S bytes of optimizer state, on N replicas:

    ================  ============  ============  ==================  =============================================
                                        weights       gradients     state               accumulators (with accumulation)
    ================  ============  ============  ==================  =============================================
    as it is          W             T             S                   T
    "optimizer"       W             T             S / N               T / N
    "gradients"       W             T / N + 2 L   S / N               T / N
    "weights"         W / N + 2 L   T / N + 2 L   S / N               T / N
    pipeline over K   W / K         T / K         S / K               none: micro-batches are summed where they are
      "optimizer"     W / K         T / K         S / N               the same
    ================  ============  ============  ==================  =============================================

    and the activations of one micro-batch. L: the weights of the largest layer, of which two are full-size at a time.
    Weights of rank one are never sharded. Source: Rajbhandari et al. 2020, arXiv 1910.02054.
    """
    level = _LEVELS.index(sharded)
    shard = {
        kind: replicas // stages if level >= least else 1
        for kind, least in (("optimizer_state", 1), ("gradients", 2), ("weights", 3))
    }
    two_layers = 2 * model.largest_layer  # the maximum of sharded tensors with full size at a time
    weights, gradients = model.weights / stages, model.trained / stages / shard["gradients"]
    if level == 3:
        parts = (model.weights - model.vectors) / shard["weights"]
        weights = min(model.weights, model.vectors + parts + two_layers)
    if level >= 2:
        gradients = min(model.trained, gradients + two_layers)
    at_once, held = _samples_of_device(samples, replicas, accumulation, stages)
    activations = model.activations * held / stages + model.always / stages
    # Half of each, and a half-precision copy of the weights that is kept for the backward pass.
    if half_precision:
        copies = 0 if level == 3 else model.trained / 2 / stages
        activations = activations / 2 + copies
    sizes: dict[str, Any] = {
        "weights": weights,
        "gradients": gradients,
        "optimizer_state": model.optimizer_state / stages / shard["optimizer_state"],
        "accumulators": model.trained / stages / shard["optimizer_state"] if accumulation > 1 else 0,
        "activations": activations,
    }
    sizes = {name: round(size) for name, size in sizes.items()}
    fits = sum(sizes.values()) <= _WORKSPACE * memory
    return MemoryPlan(sharded, accumulation, half_precision, stages, at_once, fits=fits, **sizes)


def _samples_of_device(samples: int, replicas: int, accumulation: int, stages: int) -> tuple[int, int]:
    """How many samples a device processes at once, and for how many it keeps activations."""
    of_copy = -(-samples // (replicas // stages))
    at_once = -(-of_copy // (accumulation if stages == 1 else min(of_copy, _MICRO_BATCHES * stages)))
    # 1F1B keeps the activations of at most K micro-batches, with K stages.
    return at_once, min(of_copy, at_once * stages)


def micro_batches(plan: MemoryPlan, global_batch_size: int, replicas: int) -> int:
    """The number of micro-batches into which a plan's pipeline splits the samples of a copy of the model."""
    return min(-(-global_batch_size // (replicas // plan.stages)), _MICRO_BATCHES * plan.stages)


def _cost(plan: MemoryPlan) -> tuple[Any, ...]:
    """Sort key: the same numbers first, then no idle devices, little traffic, few micro-batches."""
    level = _LEVELS.index(plan.sharded)
    return plan.stages, plan.half_precision, level == 3, len(plan.changes), level, plan.accumulation
