r"""Losses that layers add with `add_loss`, exact over several replicas.

In `fit` on several replicas the layers are Keras' own, whose added losses are means over the samples: in units of a local
mean, as any loss in a step is (see `global_loss`). In a custom loop a layer's added loss is taken for such a mean.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import losses_of_layers, regularization_losses
from ...distribute.step_context import StepContext


def losses_in_step(model: TrainedModel, step: StepContext) -> list[tf.Tensor]:
    """`model.losses` in a step on several replicas: what layers add in units of a local mean, then regularization."""
    added = added_by([model])
    if step.shares:  # a loop of the user's own divides by the number of replicas
        added = [tf.math.multiply_no_nan(loss, step.share(loss.dtype) * step.num_replicas) for loss in added]
    return added + regularization_losses(model)


def added_by(layers: Sequence[Any]) -> list[tf.Tensor]:
    """What the layers, and those inside of them, have added on this replica."""
    found = itertools.chain.from_iterable(map(losses_of_layers, layers))
    return [loss for _, _, loss in found]
