"""The steps of a model in a pipeline's scope: what `step.py` has, with forward and backward in stages.

    slices of the batch, one for each micro-batch
    -> the schedule's forward and backward passes (`distribute.pipeline.engine`)
    -> gradients of the whole batch -> optimizer, once -> metrics of the whole batch

The optimizer sees the gradients of all stages together, so there is one verdict and one global norm; what it
does with a variable's gradient runs on the variable's stage. Context: replica, inside a `StepContext`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ..distribute.pipeline.engine import PipelinedStep
from ..distribute.pipeline.pipeline import current_pipeline
from ..distribute.pipeline.placement import follow_inputs, move_slots
from ..distribute.pipeline.plan import Plan
from ..distribute.pipeline.step_parts import Result, apply_writes, micro_steps
from ..distribute.step_context import StepContext, current_step, step_scope
from ..optimizers.optimizer import apply_contributions
from . import exact_loss
from .homes import optimizers_of
from .keras_internals import KerasTrainer, unpack_x_y_sample_weight
from .sources.rows import slice_rows
from .step import track_loss


def attach(model: Any) -> None:
    """Puts a model on the pipeline in whose scope this is called; elsewhere the model stays where it is.

    Raises:
        ValueError: if a strategy's scope is entered as well.
    """
    pipeline = current_pipeline()
    if pipeline is not None:
        if tf.distribute.has_strategy():
            raise ValueError(
                "a model must not be made in a strategy's scope inside of a Pipeline's: "
                "for data parallelism use Pipeline(..., replicas=R)"
            )
        vars(model)["_pipeline"] = pipeline
        pipeline.remember(model)


def prepare(model: Any, rows: int | None, training: bool = True) -> None:
    """Cuts a built model, moves its variables to their stages, and refuses what a pipeline cannot do.

    Args:
        model: the model; built.
        rows: int or None; rows of a global batch, where known.
        training: bool; whether it is going to be trained.

    Raises:
        ValueError: naming the argument.

    Context: host, before the optimizer is built.
    """
    for name in ("train_step", "test_step", "predict_step"):
        if model.overrides_step(name):
            raise ValueError(
                f"{type(model).__name__}.{name} is a step of your own, which a pipeline cannot cut into stages: "
                f"put what it computes into layers, compute_loss or compute_metrics, or train without a Pipeline"
            )
    if model.run_eagerly is False and getattr(model, "jit_compile", False) is True:
        raise ValueError(
            "jit_compile=True is not possible in a Pipeline, since XLA compiles for one device: "
            "use jit_compile='auto' or False"
        )
    plan = model._pipeline.plan(model, rows)
    for optimizer in optimizers_of(model):
        for part in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if part is not None and part.built and part not in plan.optimizers:
                move_slots(part, plan.stages)
                plan.optimizers.add(part)
    if training:
        plan.check_rows(rows)


def train_step(model: Any, data: Any) -> dict[str, Any]:
    """One step: the numbers of `step.default_train_step`, computed in stages."""
    step = current_step()
    assert step is not None
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    plan: Plan = model._pipeline.plan(model)
    run = _pipelined(model, plan, x, step, training=True)
    optimizer = model.optimizer
    scale = (lambda value: value) if optimizer is None else optimizer.scale_loss
    head, by_micro_batch = _head(model, plan, run, step, x, y, sample_weight, scale)
    settings = plan.settings
    result = run.train(plan.jobs, head, by_micro_batch, scale, settings.rematerialize)
    with follow_inputs():
        apply_writes(result.writes)
        track_loss(model, result.loss, step)
        if by_micro_batch:
            _track_single_losses(model, y, result.outputs, sample_weight)
        variables = model.trainable_weights
        if variables:
            gradients = [result.gradients.get(id(variable)) for variable in variables]
            weight_total = step.weight_totals[0] if len(step.weight_totals) == 1 else None
            apply_contributions(optimizer, list(zip(gradients, variables)), weight_total)
        return model.compute_metrics(x, y, result.outputs, sample_weight=sample_weight)


def test_step(model: Any, data: Any) -> dict[str, Any]:
    """One step of evaluation, its forward pass in stages."""
    step = current_step()
    assert step is not None
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    result = _forward(model, x, step)
    with follow_inputs():
        loss = _own_loss(model, x, y, result.outputs, sample_weight, training=False)
        loss = loss if result.loss is None else loss + tf.cast(result.loss, loss.dtype)
        track_loss(model, loss, step)
        return model.compute_metrics(x, y, result.outputs, sample_weight=sample_weight)


def predict_step(model: Any, data: Any) -> Any:
    """The outputs for one batch, computed in stages."""
    step = current_step()
    assert step is not None
    x, _, _ = unpack_x_y_sample_weight(data)
    return _forward(model, x, step).outputs


def _forward(model: Any, x: Any, step: StepContext) -> Result:
    plan: Plan = model._pipeline.plan(model)
    run = _pipelined(model, plan, x, step, training=False)
    result = run.forward(plan.forward_jobs)
    apply_writes(result.writes)
    return result


def _pipelined(model: Any, plan: Plan, x: Any, step: StepContext, training: bool) -> PipelinedStep:
    count = plan.settings.micro_batches * plan.settings.replicas
    steps = micro_steps(step.rows, count, training)
    return PipelinedStep(plan.chain, plan.stages, _slices(x, steps), steps, plan.settings.replicas, training)


def _slices(structure: Any, steps: list[StepContext]) -> list[Any]:
    """The rows of each micro-batch; row 0 for one that has none."""
    if len(steps) == 1:
        return [structure]
    parts, first = [], 0
    for step in steps:
        last = first + step.rows
        if isinstance(last, int) and isinstance(first, int):
            start, stop = (first, last) if last > first else (0, 1)
        else:
            start, stop = tf.where(step.rows > 0, first, 0), tf.where(step.rows > 0, last, 1)
        parts.append(slice_rows(structure, start, stop))
        first = last
    return parts


# The loss at the end of the last stage.


def _head(
    model: Any,
    plan: Plan,
    run: PipelinedStep,
    step: StepContext,
    x: Any,
    y: Any,
    sample_weight: Any,
    scale: Callable[[tf.Tensor], tf.Tensor],
) -> tuple[Any, bool]:
    """The loss as a function of the outputs, and whether it is asked for each micro-batch by itself.

    Under GPipe's schedule every forward pass precedes every backward pass, so the loss of the whole batch is
    computed at once, and any function of the batch is exact. 1F1B needs the loss of a micro-batch before the
    next forward passes: its loss must treat every row by itself.
    """

    def of_all(q: int | None, outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        with step_scope(step):
            loss = _own_loss(model, x, y, outputs, sample_weight, training=True)
            return loss, scale(loss)

    rowwise = _works_on_rows(model)
    by_micro_batch = plan.settings.schedule == "1f1b" or (plan.settings.replicas > 1 and rowwise)
    if not by_micro_batch or len(run.steps) == 1:
        return of_all, False
    if not rowwise:
        raise ValueError(
            f"schedule='1f1b' needs a loss that treats every row by itself, and the loss of model {model.name!r} may "
            f"look at the whole batch: use schedule='gpipe', or declare the loss with `unisono.rowwise`"
        )
    parts = list(zip(*(_slices(part, run.steps) for part in (x, y, sample_weight))))

    def loss_of(q: int, outputs: Any, context: StepContext) -> tf.Tensor:
        with step_scope(context), _unwritten():
            x_q, y_q, weight_q = parts[q]
            loss = _own_loss(model, x_q, y_q, outputs, weight_q, training=True)
            return loss * context.share(loss.dtype)

    totals = _weight_totals(run, loss_of)
    step.weight_totals.extend(totals)

    def of_one(q: int | None, outputs: Any) -> tuple[tf.Tensor, tf.Tensor]:
        assert q is not None
        loss = loss_of(q, outputs, dataclasses.replace(run.steps[q], weight_totals=[], known_totals=totals))
        return loss, scale(loss)

    return of_one, True


def _weight_totals(run: PipelinedStep, loss_of: Callable[..., Any]) -> list[tf.Tensor]:
    """The divisors of the batch (masks, sample weights), known before the first backward pass.

    Each micro-batch's forward pass and loss are traced once more for them. Of that only what a mask depends
    on is ever run: nothing else of it is used, so it is pruned from the graph.
    """

    def of(q: int) -> list[tf.Tensor]:
        context = dataclasses.replace(run.steps[q], weight_totals=[])
        loss_of(q, run.peek(q), context)
        return context.weight_totals

    first = of(0)
    if not first:
        return []
    of_each = [first, *(of(q) for q in range(1, len(run.steps)))]
    return [tf.add_n(list(parts)) for parts in zip(*of_each)]


def _own_loss(model: Any, x: Any, y: Any, y_pred: Any, sample_weight: Any, training: bool) -> tf.Tensor:
    """The loss without what layers add and without weight regularizers: the stages see to these."""
    if _overrides_compute_loss(model):
        with _without_layer_losses(model):
            return model._compute_loss(
                x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=training
            )
    loss = None
    if model._compile_loss is not None:
        loss = model._compile_loss(y, y_pred, sample_weight)
    return tf.zeros((), keras.config.floatx()) if loss is None else tf.convert_to_tensor(loss)


def _track_single_losses(model: Any, y: Any, outputs: Any, sample_weight: Any) -> None:
    """Counts the losses of several outputs, on the whole batch: what they wrote for micro-batches is dropped."""
    if model._compile_loss is not None and model._compile_loss.metrics and not _overrides_compute_loss(model):
        model._compile_loss(y, outputs, sample_weight)


def _works_on_rows(model: Any) -> bool:
    """Whether the loss of a batch is the exact mean of its parts' losses."""
    if _overrides_compute_loss(model):
        return False
    losses = [] if model._compile_loss is None else [entry.loss for entry in model._compile_loss._flat_losses]
    return all(exact_loss.works_on_rows(loss) and loss.reduction not in (None, "none") for loss in losses)


def _overrides_compute_loss(model: Any) -> bool:
    return type(model).compute_loss is not KerasTrainer.compute_loss or "compute_loss" in vars(model)


@contextlib.contextmanager
def _without_layer_losses(model: Any) -> Iterator[None]:
    """Within it `model.losses` is a single zero (Keras reads an empty override as none)."""
    before = model._losses_override
    model._losses_override = [tf.zeros((), keras.config.floatx())]
    try:
        yield
    finally:
        model._losses_override = before


@contextlib.contextmanager
def _unwritten() -> Iterator[None]:
    """A scope whose writes are dropped."""
    with keras.StatelessScope():
        yield
