"""What a pipelined step is made of: its micro-batches, one pass of a stage, its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...distribute.step_context import StepContext
from .graph import Stage
from .state import NotedWrites

Head = Callable[[int | None, Any], tuple[tf.Tensor, tf.Tensor]]


def micro_steps(global_rows: Any, count: int) -> list[StepContext]:
    """The Q parts of the global batch of n rows: micro-batch q has the rows floor(q n / Q) to floor((q + 1) n / Q) - 1.

    Random layers draw a mask of its own for each, as they do for each replica.
    """
    edges = [(q * global_rows) // count for q in range(count + 1)]
    return [StepContext(q, count, edges[q + 1] - edges[q], global_rows) for q in range(count)]


@dataclasses.dataclass
class Result:
    """What a step computed.

    Attributes:
        outputs: the model's outputs for the whole batch, as the model returns them.
        loss: scalar tensor; loss, added losses and penalties of the global batch; None if there are none.
        gradients: dict from a variable's id to its gradient (tensor, `tf.IndexedSlices` or None), of the scaled loss,
            summed over micro-batches and replicas, on the variable's device.
        writes: (variable, value) pairs: what layers assigned (running averages, random state).
    """

    outputs: Any
    loss: Any
    gradients: dict[int, Any]
    writes: list[tuple[Any, tf.Tensor]]


@dataclasses.dataclass
class Pass:
    """One forward pass of one stage: what its backward pass needs of it."""

    inputs: dict[int, Any]
    mapping: list[Any]
    made: dict[int, Any]
    added: list[tf.Tensor]
    sources: list[tuple[int, list[tf.Tensor]]]
    tape: tf.GradientTape | None
    scope: NotedWrites

    def drop_activations(self, stage: Stage, keep: bool) -> None:
        """Lets go of all but the boundary (in eager mode that frees the memory)."""
        if not keep:
            self.made = {key: self.made[key] for key in stage.outputs}
            self.sources = []


def apply_writes(writes: Sequence[tuple[Any, tf.Tensor]]) -> None:
    """Assigns the values; inside of a scope that notes writes they are noted there."""
    for variable, value in writes:
        if isinstance(variable, keras.Variable):
            variable.assign(value)
