"""Gradients that a step of the user's own takes from a tape, and changes before it applies them.

What an optimizer is given is joined as it is where it is the gradient of the replica's rows, or that times a number. Where
the code clips it, normalizes it or compares it with another one (sharpness-aware steps, projected gradients), only the
gradient of the global batch gives what one device gives. Then the tape itself hands that over, and the optimizer adds
nothing up. If the loss is no mean and no sum but is computed from such, its gradient is (`number_parts.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...distribute.collectives import refuse_collective
from ...distribute.join_rules import numbered
from ...distribute.step_context import StepContext, current_step
from ...optimizers.stages.aggregators import SMALL, reduce_packed
from . import number_parts

OF_THE_TRAINER = "gradient of the trainer"
"""In the notes of a step: the gradient that is taken is not the user's."""


def gradient(original: Callable[..., Any]) -> Callable[..., Any]:
    """What stands in for `tf.GradientTape.gradient`."""

    def of_all_rows(
        self: Any,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        unconnected_gradients: Any = tf.UnconnectedGradients.NONE,
    ) -> Any:
        step = current_step()
        take = functools.partial(original, self, unconnected_gradients=unconnected_gradients)
        if step is None or not _joins(step, sources):
            return take(target, sources, output_gradients=output_gradients)
        number = step.count("tape calls")
        parts = step.rules.parts.get(("tape", number))
        if step.observer is not None and output_gradients is None:
            step.observer.computed(("tape", number), target, step)
        if parts is None:
            found = take(target, sources, output_gradients=output_gradients)
        else:
            found = number_parts.gradient(take, target, parts, step, sources)
        gradients = tf.nest.flatten(found)
        number_parts.keep_whole([g for g in gradients if isinstance(g, tf.Tensor)], step)
        if step.observer is not None:
            gradients = step.observer.taken(number, gradients)
        elif step.rules.tapes:
            gradients = _joined(gradients, number, step)
        return tf.nest.pack_sequence_as(found, gradients)

    return of_all_rows


def _joins(step: StepContext, sources: Any) -> bool:
    if step.shares or step.num_replicas == 1 or step.notes.get(OF_THE_TRAINER):
        return False
    return all(isinstance(each, keras.Variable | tf.Variable) for each in tf.nest.flatten(sources))


def _joined(gradients: Sequence[Any], number: int, step: StepContext) -> list[Any]:
    refuse_collective("a gradient that is changed before it is applied")
    present = [g for g in gradients if g is not None]
    weight = step.weight(numbered(step.rules.tapes, number), tf.float64)
    totals = iter(reduce_packed(present, SMALL, weight) if present else [])
    return [None if g is None else next(totals) for g in gradients]
