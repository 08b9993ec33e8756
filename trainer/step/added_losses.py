r"""Losses that layers add with `add_loss`, exact over several replicas.

A loss in a step is in units of a local mean (see `global_loss`). Of an added loss the layer alone knows what it
is: a mean over the rows, which is in these units, or a sum over them (as in Keras' own example), which must be divided
by the share of the replica:

.. math:: L = \sum_r share_r \frac{S_r}{share_r} = \sum_r S_r

Which of the two it is, is found out before the first step (`find_rules.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import losses_of_layers, regularization_losses
from ...distribute.join_rules import MEAN
from ...distribute.replicas import all_reduce_sum
from ...distribute.step_context import StepContext
from .number_parts import number_of_all


def losses_in_step(model: TrainedModel, step: StepContext) -> list[tf.Tensor]:
    """`model.losses` in a step on several replicas: what layers add in units of a local mean, then regularization.

    In code that is given the rows of all replicas an added loss is the one of the global batch.
    """
    around: StepContext | None = step.notes.get("gathered_in")
    added = added_by([model], step if around is None else around)
    if step.shares:  # a loop of the user's own divides by the number of replicas
        added = [tf.math.multiply_no_nan(loss, step.share(loss.dtype) * step.num_replicas) for loss in added]
    if around is not None:
        added = [_of_all_rows(loss, around) for loss in added]
    return added + regularization_losses(model)


def added_by(layers: Sequence[Any], step: StepContext) -> list[tf.Tensor]:
    """What the layers, and those inside of them, have added on this replica, in units of a local mean."""
    found = []
    in_parts = any(key[0] == "tape" for key in step.rules.parts)  # each part of the loss has its own rule
    for layer, number, loss in itertools.chain.from_iterable(map(losses_of_layers, layers)):
        if not type(layer).__module__.startswith("keras.src."):  # those of Keras add means
            loss = number_of_all(("added", id(layer), number), loss, step, has_gradient=True)
            if step.observer is not None:  # of a tensor of a rank the sum of its entries is added
                step.observer.note(("added", id(layer), number), tf.reduce_sum(loss))
        rule = MEAN if in_parts else step.rules.added.get((id(layer), number), MEAN)
        found.append(in_units_of_a_mean(loss, rule, step))
    return found


def in_units_of_a_mean(value: tf.Tensor, rule: str, step: StepContext) -> tf.Tensor:
    """A number of this replica, such that those of all replicas, weighted with their shares, are joined by `rule`."""
    if rule == MEAN or not value.dtype.is_floating:
        return value
    return tf.math.divide_no_nan(value * step.weight(rule, value.dtype), step.share(value.dtype))


def _of_all_rows(loss: tf.Tensor, step: StepContext) -> tf.Tensor:
    """The loss of the global batch, with the gradient of this replica's part."""
    (total,) = all_reduce_sum([tf.stop_gradient(loss) * step.share(loss.dtype)])
    return total + loss - tf.stop_gradient(loss)
