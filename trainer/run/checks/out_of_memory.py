"""The note on an out-of-memory error of a step: the use of the memory, and options that need less."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from ....callbacks.trained_model import TrainedModel
from ....compat.tensorflow_graphs.graphs import bytes_kept_for_backward
from ....compat.tensorflow_private.strategies import devices_of
from ....distribute.hardware.memory_plan import ModelMemory, less_memory
from ....distribute.sharding.sharded import SHARDABLE, level_of
from ....optimizers.held_optimizers import optimizers_of
from ...model_memory import bytes_of, memory_of
from ...step.variable_placement import accumulates


@contextlib.contextmanager
def with_advice(model: TrainedModel, function: Any, samples: int | None) -> Iterator[None]:
    """Adds a note with options to an out-of-memory error of a training step; `samples` of a full global batch."""
    try:
        yield
    except tf.errors.ResourceExhaustedError as error:
        strategy = model.distribute_strategy
        of_replica = -(-(samples or 1) // strategy.num_replicas_in_sync)
        advice = less_memory(
            step_memory(model, function.graph(), of_replica),
            of_replica,
            strategy.num_replicas_in_sync if isinstance(strategy, SHARDABLE) else 1,
            level_of(strategy),
            accumulates(model.optimizer),
            stages=1 if model._pipeline is None else len(model._pipeline.devices),
        )
        error.add_note(advice)
        raise


def step_memory(model: TrainedModel, graph: Any, samples: int) -> ModelMemory:
    """The memory of a step on so many samples of a replica; `graph` is that of its loop, or None."""
    kept = 0 if graph is None else bytes_kept_for_backward(graph)
    state = sum(bytes_of(variable) for optimizer in optimizers_of(model) for variable in optimizer.variables)
    activations = kept / len(devices_of(model.distribute_strategy)) / samples
    return memory_of(model, optimizer_state=state, activations=activations)
