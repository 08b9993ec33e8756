"""One forward pass of one stage: a function of its inputs and of the values of its variables."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from ...compat.keras_private.functional import run_node
from ...compat.keras_private.layers import is_own, losses_of_layers
from ..step.collected_writes import CollectedWrites
from .planning.graph import Stage
from .tensors import watch


class StageScope(CollectedWrites):
    """A scope in which variables have the given values, (variable, tensor) pairs, and assignments are collected."""

    def __init__(self, values: Iterable[tuple[Any, Any]]) -> None:
        super().__init__()
        self.state_mapping.update({id(variable): value for variable, value in values})


@dataclasses.dataclass
class Pass:
    """One forward pass of one stage, for its backward pass."""

    inputs: dict[int, Any]
    mapping: list[Any]  # (variable, value) pairs
    made: dict[int, Any]
    added: list[tf.Tensor]  # losses that layers have added
    sources: list[tuple[int, list[tf.Tensor]]]
    tape: tf.GradientTape | None
    writes: StageScope


def run_stage(
    stage: Stage, inputs: dict[int, Any], mapping: list[Any], keep: bool, training: bool, several: bool
) -> Pass:
    """Calls the layers of a stage.

    Every micro-batch starts from the state at the beginning of the step, and a repeated pass is bitwise identical.

    Args:
        stage: the stage.
        inputs: tensors by the ids of their symbolic tensors.
        mapping: (variable, value) pairs: the values that the layers read.
        keep: bool; whether a tape keeps the activations.
        training: bool; the mode in which layers are called.
        several: bool; whether this is one of several micro-batches.

    Raises:
        ValueError: user code adds a loss for one of several micro-batches, which may be a mean or a sum.
    """
    tape = tf.GradientTape(watch_accessed_variables=False) if keep and training else None
    trainable = {id(v) for v in stage.trainable}
    with tape or contextlib.nullcontext(), StageScope(mapping) as writes:
        sources = [(key, watch(tape, value)) for key, value in inputs.items()]
        sources += [(id(v), watch(tape, value)) for v, value in mapping if id(v) in trainable]
        made = dict(inputs)
        for node in stage.nodes:
            outputs = run_node(node, made, training)
            made.update({id(symbolic): output for symbolic, output in zip(node.outputs, outputs)})
        losses = [each for layer in stage.layers for each in losses_of_layers(layer)]
        for layer, _, _ in losses:
            if several and is_own(layer):
                raise ValueError(
                    f"The layer {layer.name!r} adds a loss with `add_loss`, and a pipeline computes it for each of several "
                    "micro-batches: return it from `compute_loss`, which gets the whole batch, or use `micro_batches=1`."
                )
        added = [tf.reduce_sum(loss) for _, _, loss in losses if loss.dtype.is_floating]
    return Pass(inputs, mapping, made, added, sources, tape, writes)
