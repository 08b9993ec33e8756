"""The loss of a model in a step: the compiled one, what layers add, or a `compute_loss` of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.layers import losses_overridden
from ...compat.training import KerasTrainer, aggregated_loss, compute_loss
from ...distribute.step_context import current_step
from .added_losses import losses_in_step
from .global_loss import compiled_loss_of


def default_compute_loss(
    self: TrainedModel,
    x: Any = None,
    y: Any = None,
    y_pred: Any = None,
    sample_weight: Any = None,
    training: bool = True,
) -> Any:
    """The compiled loss and what layers add, as `keras.Model.compute_loss`. Override it for a loss of your own.

    In a step on several replicas the value is in units of a mean over this replica's rows: weighted with the
    replicas' shares of the rows, the values add up to the loss of the global batch, whatever its reductions.

    Args:
        self: the model.
        x: this replica's rows of the inputs.
        y: of the targets.
        y_pred: of the outputs.
        sample_weight: of the weights, or None.
        training: bool; whether the model is being trained.

    Returns:
        Scalar tensor; `[rows]` for a loss without a reduction.

    Raises:
        ValueError: the model was compiled without a loss, and no layer adds one.
    """
    step = current_step()
    if step is None or step.shares or not (step.num_replicas > 1 or step.totals is not None):
        return KerasTrainer.compute_loss(self, x, y, y_pred, sample_weight, training)  # pyright: ignore
    loss = compiled_loss_of(self, y, y_pred, sample_weight)
    losses = [] if loss is None else [loss]
    losses += [aggregated_loss(self, added) for added in self.losses]
    if not losses:
        return KerasTrainer.compute_loss(self, x, y, y_pred, sample_weight, training)  # pyright: ignore
    return losses[0] if len(losses) == 1 else keras.ops.sum(losses)


def losses_of(model: TrainedModel, original: Callable[[], list[Any]]) -> list[Any]:
    """`model.losses`: in a step on several replicas in units of a local mean, elsewhere `original()`, Keras' own."""
    step = current_step()
    if step is None or losses_overridden(model):
        return original()
    return losses_in_step(model, step) if step.num_replicas > 1 else original()


def overrides_compute_loss(model: TrainedModel) -> bool:
    """Whether the model has a `compute_loss` of the user's own."""
    return type(model).compute_loss is not default_compute_loss or "compute_loss" in vars(model)


def loss_on_replica(
    model: TrainedModel, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool
) -> tf.Tensor:
    """`model.compute_loss` in units of a mean over this replica's rows. Arguments as `default_compute_loss`."""
    return compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training)
