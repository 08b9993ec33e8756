"""The memory of GPUs: how much of it is taken, and what would need less."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from .arguments import shown
from .memory_plan import MemoryPlan, ModelMemory, memory_of_state
from .sharding.levels import LEVELS


def grow_gpu_memory(enabled: bool = True) -> list[str]:
    """Has TensorFlow take the memory of every GPU as it is needed, not nearly all of it at the start.

    For machines that several programs share, and to see in `nvidia-smi` what a program needs. What was taken is not given
    back before the program ends, and fragments more. Call it before anything else uses TensorFlow's devices.

    Args:
        enabled: False: all of it at the start, as by default.

    Returns:
        The names of the GPUs; none where there are none.

    Raises:
        TypeError: `enabled` is no bool.
        RuntimeError: the GPUs are in use already.
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"`enabled` must be True or False. Received: {shown(enabled)}")
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        try:
            tf.config.experimental.set_memory_growth(gpu, enabled)
        except RuntimeError:
            raise RuntimeError(
                "grow_gpu_memory() came too late: TensorFlow already uses the GPUs; call it before anything else that uses "
                "TensorFlow, or set TF_FORCE_GPU_ALLOW_GROWTH=true."
            ) from None
    return [gpu.name for gpu in gpus]


class StepMemory(NamedTuple):
    """Bytes that a training step needs.

    Attributes:
        weights: of the whole model.
        gradients: of its trained weights.
        slots: of the whole optimizer.
        activations: what the backward pass on one replica waits for.
        rows: of one replica.
        replicas: that may hold the state in parts; 1: it cannot be sharded.
        sharded: the level at which they do; None: they hold all of it.
        largest_layer: of the weights of the layer that has most.
        vectors: of the weights of rank one and less.
    """

    weights: int
    gradients: int
    slots: int
    activations: int
    rows: int
    replicas: int = 1
    sharded: str | None = None
    largest_layer: int = 0
    vectors: int = 0


def less_memory(need: StepMemory, half_precision: bool, accumulates: bool, stages: int = 1) -> str:
    """What would need less memory and how much less, the most helpful first, in one paragraph.

    Args:
        need: of the model.
        half_precision: whether activations are float16 or bfloat16 already.
        accumulates: whether gradients are summed over several calls already.
        stages: devices that the model is cut over.
    """
    model = ModelMemory(
        need.weights,
        need.gradients,
        need.slots,
        0.0,
        largest_layer=need.largest_layer,
        vectors=need.vectors,
    )

    def state(level: str | None) -> MemoryPlan:
        return memory_of_state(model, need.replicas, level, accumulates)

    now = state(need.sharded)
    saved: list[tuple[float, str]] = []
    if need.rows > 1:
        saved.append((need.activations / 2, "half the batch"))
        sums = 0 if accumulates else now.gradients
        parts = min(4, need.rows)
        gained = need.activations * (1 - 1 / parts) - sums
        name = f"{parts} micro-batches in turn (gradient_accumulation_steps={parts}, the batch / {parts})"
        saved.append((gained, name))
    if not half_precision:
        saved.append((need.activations / 2, "a policy of half precision (mixed_bfloat16 or mixed_float16)"))
    for level in LEVELS if need.replicas > 1 and stages == 1 else ():
        name = f'state in parts on {need.replicas} replicas (unisono.distribute.sharded(strategy, level="{level}"))'
        saved.append((now.total - state(level).total, name))
    cut_model = f"a pipeline over {2 * stages} devices (unisono.distribute.Pipeline)"
    saved.append(((need.weights + need.gradients + need.slots) / 2, cut_model))
    helpful = sorted((pair for pair in saved if pair[0] > 0), reverse=True)
    ways = "; ".join(f"{name}: about {in_words(amount)} less" for amount, name in helpful)
    return (
        f"Of a replica's memory, weights take {in_words(now.weights)}, gradients {in_words(now.gradients)}, the "
        f"optimizer's slots {in_words(now.slots)}, and the activations of {need.rows} rows about "
        f"{in_words(need.activations)}. What would help: {ways}."
    )


def in_words(size: float) -> str:
    """A number of bytes, for people."""
    for unit in ("bytes", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
