"""The variables that code of the user's own writes in a step, beside metrics and what training updates by gradients.

They are in layers of the user's own, in layers that are frozen, in losses, and in any object that the code knows.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
import tensorflow as tf

from ...callbacks.backup.generators import reached
from ...callbacks.trained_model import TrainedModel
from ...compat.layers import is_own, layers_of, own_state
from ...compat.random_state import is_random_state
from ...compat.training import given_metrics
from ...compat.variables import is_read_together, raw_value
from .global_metrics import metrics_of, variable_ids


def states_of_layers(model: TrainedModel) -> list[keras.Variable]:
    """The variables of the user's own layers that training does not update by gradients, random state left out."""
    found: dict[int, keras.Variable] = {}
    for layer in filter(is_own, layers_of(model)):
        found.update((id(v), v) for v in own_state(layer) if tf.as_dtype(v.dtype) != tf.string)
    return list(found.values())


def losses_hold_state(model: TrainedModel) -> bool:
    """Whether losses or metrics of `compile` reach a variable that is neither of the model nor of a metric."""
    known = variable_ids(metrics_of(model)) | {id(v) for v in model.variables}
    roots = {"loss": getattr(model, "loss", None), "metrics": given_metrics(model)}
    return any(id(found) not in known for _, found in reached(roots, (keras.Variable,)))


def other_states(
    model: TrainedModel, written: Sequence[keras.Variable], known: Sequence[keras.Variable]
) -> list[keras.Variable]:
    """Of the variables that a step writes those that code of the user's own keeps elsewhere than in layers of its own.

    They are in a loss, in an object, or in a frozen layer. What Keras' own layers write themselves is left out.
    """
    of_keras = [v for layer in layers_of(model) if not is_own(layer) for v in own_state(layer)]
    out = {id(v) for v in (*known, *of_keras, *model.trainable_weights)}

    return [v for v in written if id(v) not in out and _is_state(v)]


def schedules(
    model: TrainedModel, read: Sequence[keras.Variable], known: Sequence[keras.Variable]
) -> list[keras.Variable]:
    """Of the variables that a step reads the scalars that are not updated by gradients: counts, weights of losses."""
    out = {id(v) for v in (*known, *model.trainable_weights)}
    return [v for v in read if id(v) not in out and len(v.shape) == 0 and _is_state(v)]


def _is_state(v: keras.Variable) -> bool:
    return not (is_random_state(v) or is_read_together(raw_value(v)) or tf.as_dtype(v.dtype) == tf.string)
