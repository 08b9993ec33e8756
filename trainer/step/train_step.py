"""One step: what a replica computes. Read it from top to bottom.

    slice of the batch -> forward -> exact loss -> gradients -> optimizer -> metrics -> writes

Context: replica, inside `run_on_replicas`. How steps are compiled and looped is in `step_function.py`.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from ...compat.layers import forget_losses, takes_training
from ...compat.training import compute_loss, loss_tracker, unpack_x_y_sample_weight
from ...distribute.parameter_servers.shards import gradient
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.step_context import StepContext, current_step, step_scope
from ...optimizers.call_options import CallOptions, call_options
from .collected_writes import CollectedWrites, make_writes
from .compiled_compute import compile_compute
from .global_metrics import variable_ids


def replica_step(model: Any, step_fn: Any, data: Any, step: StepContext) -> dict[str, tf.Tensor]:
    """Runs `train_step` or `test_step` on one replica's rows and makes its writes.

    Args:
        model: the model.
        step_fn: `model.train_step` or `model.test_step`.
        data: this replica's rows, as `(x,)`, `(x, y)` or `(x, y, sample_weight)`.
        step: this replica's part of the global batch.

    Returns:
        The step's logs, each weighted with this replica's share: their sum over replicas is the log.
    """
    with step_scope(step), CollectedWrites() as writes:
        step.writes = writes
        logs = step_fn(data)
    if step.num_replicas > 1 and writes.losses:
        forget_losses(model, writes.losses)
    local, gathered = variable_ids(model.metrics)
    with step_scope(step):
        make_writes(writes.items(), step, local, gathered)
    if not model.has_own_logs(step.training):
        return {}
    return {name: _share_of(value, step) for name, value in (logs or {}).items()}


def _share_of(value: Any, step: StepContext) -> Any:
    if isinstance(value, dict):
        return {name: _share_of(v, step) for name, v in value.items()}
    value = tf.convert_to_tensor(value)
    if step.num_replicas == 1:
        return value
    dtype = value.dtype if value.dtype.is_floating else tf.float32
    return tf.math.multiply_no_nan(tf.cast(value, dtype), step.share(dtype))


def default_train_step(model: Any, data: Any) -> dict[str, Any]:
    """The step of `fit` for a model that has no `train_step` of its own.

    Equation: `gradient(scale * share_r * C_r)` on each replica, with `sum_r share_r C_r` the loss of the global batch
    (see `exact_loss`); the optimizer sums, unscales, judges, transforms and applies.
    """
    step = current_step()
    assert step is not None
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    variables = model.trainable_weights

    def compute(data: Any) -> tuple[Any, list[Any], Any]:
        return forward_and_backward(model, variables, data)

    if step.compiles:
        loss, gradients, y_pred = compile_compute(compute, data)
    else:
        loss, gradients, y_pred = compute(data)
    track_loss(model, loss, step)
    if variables:
        weight_total = step.weight_totals[0] if len(step.weight_totals) == 1 else None
        with call_options(CallOptions(contributions=True, weight_total=weight_total)):
            model.optimizer.apply_gradients(list(zip(gradients, variables)))
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def forward_and_backward(model: Any, variables: list[Any], data: Any) -> tuple[Any, list[Any], Any]:
    """This replica's loss, its part of the gradients, and the outputs.

    Args:
        model: the model.
        variables: what to differentiate with respect to.
        data: this replica's rows.

    Returns:
        (loss in units of a local mean, gradients of `scale * share * loss`: None where there is none, outputs).
    """
    step = current_step()
    assert step is not None
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = forward(model, x, training=True)
        loss = compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        contribution = loss if step.num_replicas == 1 else loss * step.share(loss.dtype)
        scaled = contribution if model.optimizer is None else model.optimizer.scale_loss(contribution)
    gradients = gradient(tape, scaled, variables) if variables else []
    if step.num_replicas > 1 and not (isinstance(step.rows, int) and step.rows > 0):
        gradients = [None if g is None else _zero_unless(step.alive, g) for g in gradients]
    return loss, gradients, y_pred


def default_test_step(model: Any, data: Any) -> dict[str, Any]:
    """The step of `evaluate` for a model that has no `test_step` of its own."""
    step = current_step()
    assert step is not None
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    y_pred = forward(model, x, training=False)
    loss = compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    track_loss(model, loss, step)
    return model.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def forward(model: Any, x: Any, training: bool) -> Any:
    """The model's outputs; `training` is passed where the model's `call` takes it."""
    return model(x, training=training) if takes_training(model) else model(x)


def track_loss(model: Any, loss: tf.Tensor, step: StepContext) -> None:
    """Counts the loss into the epoch's mean, weighted with its rows.

    A loss without reduction is a vector in units of the gradient, which sums it; what is logged is the mean of the rows.
    """
    if loss.shape.rank != 0 and step.num_replicas > 1:
        loss = loss * step.share(loss.dtype)
    loss_tracker(model).update_state(loss, sample_weight=step.rows)


def _zero_unless(alive: Any, gradient: Any) -> Any:
    """The gradient of a replica that has rows; zeros, whatever was computed, for one that has none."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(alive, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(alive, gradient, tf.zeros_like(gradient))


def predict_on_replica(model: Any, data: Any, step: StepContext) -> Any:
    """The outputs for one replica's rows; none for a borrowed one.

    A layer that draws random numbers in prediction moves its generator on, so that the next batch gets others. The workers
    of parameter servers leave it where it is: they predict in any order.
    """
    with step_scope(step), CollectedWrites() as writes:
        step.writes = writes
        outputs = model.predict_step(data)
    if not on_parameter_servers():
        with step_scope(step):
            make_writes(writes.items(), step, set(), set())
    if step.num_replicas == 1 or (isinstance(step.rows, int) and step.rows > 0):
        return outputs
    return keras.tree.map_structure(lambda t: t[: step.rows], outputs)
