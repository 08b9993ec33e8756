"""The micro-batches of a step: their samples, and the concatenation of their outputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...compat.keras_private.layers import get_keras_mask, set_keras_mask
from ...distribute.step_context import StepContext
from ..inputs.batch import concat_samples, is_scalar, sample_count, slice_samples
from ..step.replica_slices import replica_bounds


def micro_steps(global_samples: Any, count: int) -> list[StepContext]:
    """The Q micro-batches of a global batch, which a step treats like replicas.

    Random layers draw different numbers for each, as for each replica.
    """
    bounds = [replica_bounds(global_samples, count, q) for q in range(count)]
    return [StepContext(q, count, last - first, global_samples) for q, (first, last) in enumerate(bounds)]


def micro_slices(structure: Any, steps: Sequence[StepContext]) -> list[Any]:
    """The samples of each micro-batch; sample 0 for an empty one."""
    if len(steps) == 1:
        return [structure]
    parts = []
    for step in steps:
        first, last = step.samples_before, step.samples_before + step.samples
        if isinstance(last, int):
            first, last = (first, last) if step.samples else (0, 1)
        else:
            first, last = tf.where(step.alive, first, 0), tf.where(step.alive, last, 1)
        parts.append(slice_samples(structure, first, last))
    return parts


def concat_micro_batches(parts: Sequence[Any], steps: Sequence[StepContext], trim: bool) -> Any:
    """One output of the whole batch from those of its micro-batches, with its Keras mask.

    Args:
        parts: the outputs, `[samples of the micro-batch, ...]`.
        steps: the micro-batches.
        trim: bool; whether the borrowed sample of an empty micro-batch is left out.
    """
    if len(parts) == 1:
        return parts[0]

    def concat(values: Sequence[Any]) -> Any:
        return concat_samples([_own(value, step, trim) for value, step in zip(values, steps)])

    whole, masks = concat(parts), [get_keras_mask(part) for part in parts]
    if all(mask is not None for mask in masks):
        set_keras_mask(whole, concat(masks))
    return whole


def _own(value: Any, step: StepContext, trim: bool) -> Any:
    """The part of a tensor for the samples of a micro-batch. A scalar is one entry for the micro-batch."""
    if not trim:
        return value
    if is_scalar(value):
        return value[None]
    return value if step.certainly_alive else value[: tf.where(step.alive, sample_count(value), 0)]
