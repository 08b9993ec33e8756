"""One forward pass of one stage: a function of its inputs and of the values of its variables.

The tensors that are sent between stages are dense, ragged or sparse, with their Keras masks.
"""

import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.functional import run_node
from ...compat.keras_private.layers import is_own, losses_of_layers
from ...compat.upstream_places import get_keras_mask, set_keras_mask
from ...distribute.step_context import StepContext
from ...optimizers.stages.sparse_gradients import map_values
from ..step.collected_writes import CollectedWrites
from .planning.graph import Stage


@dataclasses.dataclass
class Pass:
    """One forward pass of one stage, for its backward pass."""

    inputs: dict[int, Any]
    mapping: list[Any]  # (variable, value) pairs
    made: dict[int, Any]
    added: list[tf.Tensor]  # losses that layers have added
    sources: list[tuple[int, list[tf.Tensor]]]
    tape: tf.GradientTape | None
    writes: CollectedWrites


def run_stage(
    stage: Stage, inputs: dict[int, Any], mapping: list[Any], keep: bool, training: bool, several: bool
) -> Pass:
    """Call the layers of a stage.

    Every micro-batch starts from the state at the beginning of the step, and a repeated pass is bitwise identical.

    `inputs` are by the ids of their symbolic tensors; the layers read the values of the variables from `mapping`. With
    `keep` a tape keeps the activations. A loss that user code adds for one of `several` micro-batches raises a ValueError,
    because it may be a mean or a sum.
    """
    tape = tf.GradientTape(watch_accessed_variables=False) if keep and training else None
    trainable = {id(v) for v in stage.trainable}
    writes = CollectedWrites()
    writes.state_mapping.update({id(variable): value for variable, value in mapping})
    with tape or contextlib.nullcontext(), writes:
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


def flatten(value: Any) -> list[Any]:
    """Return the dense parts of a nest of tensors, without Nones."""
    flat = tf.nest.flatten(value, expand_composites=True)
    return [tensor for tensor in flat if tensor is not None]


def identity(value: Any) -> Any:
    """Return a copy on the current device of a tensor and its Keras mask; None stays None."""
    if value is None:
        return None
    copy = tf.nest.map_structure(tf.identity, value, expand_composites=True)
    mask = get_keras_mask(value)
    if mask is not None:
        set_keras_mask(copy, tf.identity(mask))
    return copy


def watch(tape: tf.GradientTape | None, value: Any) -> list[tf.Tensor]:
    """Let the tape watch the floating-point parts of a value, and return them."""
    parts = [t for t in flatten(value) if t.dtype.is_floating or t.dtype.is_complex]
    if tape is not None:
        tape.watch(parts)
    return parts


def cotangents_of(arrived: Sequence[tuple[Any, list[list[Any]]]]) -> tuple[list[Any], list[Any]]:
    """Return the parts of outputs that have cotangents, and these: sums over the users, by value in `arrived`."""
    targets, cotangents = [], []
    for value, from_users in arrived:
        for index, part in enumerate(watch(None, value)):
            given = [parts[index] for parts in from_users if parts[index] is not None]
            if given:
                targets.append(part)
                cotangents.append(given[0] if len(given) == 1 else tf.add_n(given))
    return targets, cotangents


def add_gradients(total: Any, gradient: Any) -> Any:
    """Return `total + gradient`; None counts as 0. Two `tf.IndexedSlices` stay sparse and are concatenated."""
    if total is None or gradient is None:
        return gradient if total is None else total
    if isinstance(total, tf.IndexedSlices) and isinstance(gradient, tf.IndexedSlices):
        values = tf.concat([total.values, gradient.values], 0)
        return tf.IndexedSlices(values, tf.concat([total.indices, gradient.indices], 0), total.dense_shape)
    return tf.convert_to_tensor(total) + tf.convert_to_tensor(gradient)


def zero_unless_alive(step: StepContext, gradient: Any) -> Any:
    """Return the gradient of a micro-batch; zeros for an empty one, regardless of the computed value."""
    if gradient is None or step.alive is True:
        return gradient
    return map_values(lambda value: tf.where(step.alive, value, tf.zeros_like(value)), gradient)
