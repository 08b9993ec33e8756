"""The loss at the end of a pipeline's last stage: of the whole batch at once, or of one micro-batch after the other."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import without_layer_losses
from ...compat.keras_private.training import compiled_loss, compute_loss, flat_losses, overrides_compute_loss
from ...distribute.step_context import StepContext, WeightTotals, step_scope
from ...state.trained_model import TrainedModel
from ..step import global_loss as exact_loss
from .engine import Head, PipelinedStep
from .micro_batches import micro_slices
from .planning.stage_plan import Plan


def head_of(
    model: TrainedModel, plan: Plan, run: PipelinedStep, step: StepContext, x: Any, y: Any, sample_weight: Any
) -> tuple[Head, bool]:
    """Return the loss as a function of the outputs, and whether it is computed for each micro-batch alone.

    Under GPipe's schedule every forward pass precedes every backward pass, so the loss of the whole batch is computed at
    once, and any function of the batch is exact. 1F1B needs the loss of a micro-batch before the next forward passes: its
    loss must treat every sample independently.
    """

    def of_all(q: int | None, outputs: Any) -> tf.Tensor:
        with step_scope(step):
            return own_loss(model, x, y, outputs, sample_weight, training=True)

    rowwise = _works_on_samples(model)
    by_micro_batch = plan.pipeline.schedule == "1f1b" or (plan.pipeline.replicas > 1 and rowwise)
    if not by_micro_batch or len(run.steps) == 1:
        return of_all, False
    if not rowwise:
        raise ValueError(
            f"`schedule='1f1b'` needs a loss that treats every sample independently, but the loss of model {model.name!r} "
            f"may depend on the whole batch: use schedule='gpipe', or declare the loss with `unisono.rowwise`."
        )
    parts = list(zip(*(micro_slices(part, run.steps) for part in (x, y, sample_weight))))

    def loss_of(q: int, outputs: Any, context: StepContext) -> tf.Tensor:
        with step_scope(context), keras.StatelessScope():  # its writes are dropped
            x_q, y_q, weight_q = parts[q]
            loss = own_loss(model, x_q, y_q, outputs, weight_q, training=True)
            return loss * context.share(loss.dtype)

    totals = _weight_totals(run, loss_of)
    if step.totals is not None:
        step.totals.noted.extend(totals)

    def of_one(q: int | None, outputs: Any) -> tf.Tensor:
        assert q is not None
        return loss_of(q, outputs, dataclasses.replace(run.steps[q], totals=WeightTotals(known=totals)))

    return of_one, True


def _weight_totals(run: PipelinedStep, loss_of: Callable[..., Any]) -> list[tf.Tensor]:
    """Return the divisors of the batch (masks, weights) before the first backward pass; the unused rest is pruned."""

    def of(q: int) -> list[tf.Tensor]:
        found = WeightTotals()
        loss_of(q, run.mask_outputs(q), dataclasses.replace(run.steps[q], totals=found))
        return found.noted

    first = of(0)
    if not first:
        return []
    of_each = [first, *(of(q) for q in range(1, len(run.steps)))]
    return [tf.add_n(list(parts)) for parts in zip(*of_each)]


def own_loss(
    model: TrainedModel, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool
) -> tf.Tensor:
    """Return the loss without losses of layers and without weight regularizers: the stages add these."""
    if overrides_compute_loss(model):
        with without_layer_losses(model):
            return compute_loss(
                model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
    compiled = compiled_loss(model)
    if compiled is None:
        return tf.zeros((), keras.config.floatx())
    return tf.convert_to_tensor(compiled(y, y_pred, sample_weight))


def track_single_losses(model: TrainedModel, y: Any, outputs: Any, sample_weight: Any) -> None:
    """Update the metrics of several outputs' losses, on the whole batch: their writes for micro-batches are dropped."""
    compiled = compiled_loss(model)
    if compiled is not None and compiled.metrics and not overrides_compute_loss(model):
        compiled(y, outputs, sample_weight)


def _works_on_samples(model: TrainedModel) -> bool:
    """Return whether the loss of a batch is the exact mean of its parts' losses."""
    if overrides_compute_loss(model):
        return False
    flattest = min(model._pipeline.plan(model).chain.graph.outputs, key=lambda output: len(output.shape))
    return all(
        exact_loss.works_on_samples(loss, flattest) and loss.reduction not in (None, "none")
        for loss in flat_losses(model)
    )
