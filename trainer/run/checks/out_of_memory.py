"""The note on an out-of-memory error of a step: the use of the memory, and options that need less."""

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ....compat.tensorflow_graphs.graphs import bytes_kept_for_backward
from ....compat.tensorflow_private.strategies import devices_of
from ....distribute.hardware.device_memory import in_words
from ....distribute.hardware.memory_plan import memory_plans, plan_memory
from ....distribute.mesh import Mesh, mesh_of
from ....distribute.sharding.sharded import SHARDABLE, level_of
from ....optimizers.held_optimizers import optimizers_of
from ....state.trained_model import TrainedModel
from ...model_memory import bytes_of, bytes_of_parts, memory_of
from ...step.variable_placement import accumulates


@contextlib.contextmanager
def with_advice(model: TrainedModel, function: Any, samples: int | None) -> Iterator[None]:
    """Add a note with options to an out-of-memory error of a training step; `samples` of a full global batch."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        strategy, graph = model.distribute_strategy, function.graph()
        if (mesh := mesh_of(strategy)).divides_weights:
            error.add_note(_describe_parts(model, mesh, samples or 1))
            raise
        each = -(-(samples or 1) // strategy.num_replicas_in_sync)
        kept = bytes_kept_for_backward(graph) / len(devices_of(strategy)) / each if graph is not None else 0.0
        state = bytes_of(*(v for optimizer in optimizers_of(model) for v in optimizer.variables))
        stages = 1 if model._pipeline is None else len(model._pipeline.devices)
        devices = stages * (strategy.num_replicas_in_sync if isinstance(strategy, SHARDABLE) else 1)
        parts, needed = 1 + accumulates(model.optimizer), memory_of(model, state, kept)
        batch = each * parts * devices // stages
        now = plan_memory(needed, 1.0, batch, devices, False, level_of(strategy), parts, stages)
        kinds = ("weights", "gradients", "optimizer_state", "activations", "total")
        sizes = ", ".join(f"{kind.replace('_', ' ')} {in_words(getattr(now, kind))}" for kind in kinds)
        less = "; ".join(
            f"{p} ({in_words(p.total)})" for p in memory_plans(needed, now.total, batch, devices)[1:]
        )
        options = f"Less memory: a smaller batch; a `unisono.distribute.Pipeline` over more devices; {less}"
        error.add_note(f"Memory of a replica with {each} samples: {sizes}. {options}.")
        raise


def _describe_parts(model: TrainedModel, mesh: Mesh, samples: int) -> str:
    """Return what a replica of a mesh has, and options that need less."""
    state = [v for optimizer in optimizers_of(model) for v in optimizer.variables]
    weights, own = in_words(bytes_of_parts(*model.variables)), in_words(bytes_of_parts(*state))
    return (
        f"Memory of a replica with {-(-samples // mesh.shape[0])} samples on the mesh {mesh}: weights {weights}, optimizer "
        f"state {own}. Less memory: a smaller batch; layouts that divide more weights; more replicas along "
        f"{mesh.names[1]!r}; `unisono.distribute.sharded(strategy)`, which divides the optimizer state over "
        f"{mesh.names[0]!r}, too."
    )
