"""One step: what a replica computes. Read it from top to bottom.

    slice of the batch -> forward -> loss of the global batch -> gradients -> optimizer -> metrics -> writes

Context: replica. How steps are compiled and looped is in `run/step_function.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import keras
import tensorflow as tf

from ...callbacks.trained_model import TrainedModel
from ...compat.equal_operations import made_once
from ...compat.layers import takes_training
from ...compat.training import TensorFlowTrainer, loss_tracker, unpack_x_y_sample_weight
from ...distribute.parameter_servers.shards import gradient
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.step_context import (
    WEIGHTED,
    StepContext,
    WeightTotals,
    current_step,
    step_scope,
    this_step,
)
from ...optimizers.call_options import CallOptions, call_options
from ...optimizers.stages.user_code import takes_gradients_itself
from ..checks import checked_logs
from ..inputs.rows import row_count
from .collected_writes import CollectedWrites, make_writes
from .global_metrics import metrics_of, variable_ids
from .replica_slices import ReplicaSlices
from .step_loss import loss_on_replica


@dataclasses.dataclass
class Tracing:
    """How a step is traced, and what was found while it was.

    Attributes:
        own_logs: bool; whether the step returns logs that are not the results of metrics.
        weigh_losses: whether the weight totals of losses are noted; see `StepContext.totals`.
        compute: see `StepContext`.
        in_xla: see `StepContext`.
        after: operations that must have ended before anything of the step begins, even the drawing of a random number.
        enter_thread: called first on each replica, which may have a thread of its own.
        partitioned: whether the logs that the step returns are those of the global batch.
        calls: see `StepContext`.
        shapes_vary: bool; set while tracing, see `StepContext`.
    """

    own_logs: bool = False
    weigh_losses: bool = False
    compute: Any = None
    in_xla: bool = False
    after: Sequence[Any] = ()
    enter_thread: Callable[[], None] | None = None
    partitioned: bool = False
    calls: dict[int, Any] = dataclasses.field(default_factory=dict)
    shapes_vary: bool = False


def replica_step(
    model: TrainedModel,
    step_fn: Callable[[Any], Any],
    slices: ReplicaSlices,
    tracing: Tracing,
    parts: list[Any],
) -> dict[str, Any]:
    """Runs a training or evaluation step on one replica's rows and makes its writes.

    Args:
        model: the model.
        step_fn: `model.train_step`, or what takes its place; gets what Keras gives it (see `inputs/structure.py`). Or
            a partitioned step.
        slices: of the global batch.
        tracing: how the step is traced.
        parts: `slices.parts` on this replica.

    Returns:
        The step's own logs.
    """
    if tracing.enter_thread is not None:
        tracing.enter_thread()
    # No name scope, so that the tags of summaries do not tell how steps are looped.
    with tf.name_scope(""), tf.control_dependencies(tracing.after):
        data, rows = slices.of_this_replica(parts)
        step = StepContext(
            **vars(rows),
            compute=tracing.compute,
            in_xla=tracing.in_xla,
            totals=WeightTotals() if tracing.weigh_losses else None,
            calls=tracing.calls,
        )
        with step_scope(step):
            with CollectedWrites() as writes:
                step.writes = writes
                logs = step_fn(data)
            make_writes(writes.items(), step, variable_ids(metrics_of(model)))
        tracing.shapes_vary = tracing.shapes_vary or step.shapes_vary or slices.shapes_vary
        if tracing.partitioned:
            return logs
        if not tracing.own_logs:
            return {}
        named = checked_logs(logs, getattr(step_fn, "__name__", "train_step"))
        return cast(dict[str, Any], keras.tree.map_structure(tf.convert_to_tensor, named))


def default_train_step(self: TrainedModel, data: Any) -> dict[str, Any]:
    """One step on this replica's rows: forward, loss, gradients, update. Override it to train in your own way.

    Equation: `gradient(scale * share_r * C_r)` on each replica, with `sum_r share_r C_r` the loss of the global batch
    (see `global_loss`); the optimizer sums, unscales, judges, transforms and applies.

    Args:
        self: the model.
        data: this replica's rows, as x, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

    Returns:
        The logs: name -> scalar.
    """
    step = current_step()
    if step is None:
        return TensorFlowTrainer.train_step(cast(TensorFlowTrainer, self), data)
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    variables = self.trainable_weights
    compute = step.compute or forward_and_backward
    loss, gradients, y_pred = compute(self, variables, data)
    track_loss(self, loss, step)
    if variables:
        pairs, options = _what_it_takes(self.optimizer, list(zip(gradients, variables)), step)
        with call_options(options):
            self.optimizer.apply_gradients(pairs)
    return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def _what_it_takes(
    optimizer: Any, pairs: list[tuple[Any, Any]], step: StepContext
) -> tuple[list[tuple[Any, Any]], CallOptions]:
    """What an optimizer is given: one of a user's that looks at all gradients those of the global batch."""
    options = CallOptions(contributions=True, weight_total=step.weight_total)
    if step.num_replicas > 1 and step.take_gradients is None and takes_gradients_itself(optimizer):
        with call_options(options):
            pairs = optimizer.aggregate_gradients(pairs)
        options = dataclasses.replace(options, skip_aggregation=True)
    return pairs, options


def forward_and_backward(model: TrainedModel, variables: list[Any], data: Any) -> tuple[Any, list[Any], Any]:
    """This replica's loss, its part of the gradients, and the outputs.

    Args:
        model: the model.
        variables: what to differentiate with respect to.
        data: this replica's rows.

    Returns:
        (loss in units of a local mean, gradients of `scale * share * loss`: None where there is none, outputs).
    """
    step = this_step()
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    with step.noting(WEIGHTED), tf.GradientTape() as tape:
        y_pred = forward(model, x, training=True)
        loss = loss_on_replica(model, x, y, y_pred, sample_weight, training=True)
        contribution = loss if step.num_replicas == 1 else loss * step.share(loss.dtype)
        scaled = contribution if model.optimizer is None else model.optimizer.scale_loss(contribution)
    with made_once():
        gradients = gradient(tape, scaled, variables) if variables else []
    if step.num_replicas > 1 and not step.certainly_alive:
        gradients = [None if g is None else _zero_unless(step.alive, g) for g in gradients]
    return loss, gradients, y_pred


def default_test_step(self: TrainedModel, data: Any) -> dict[str, Any]:
    """One step of evaluation on this replica's rows; arguments and result as `default_train_step`."""
    step = current_step()
    if step is None:
        return TensorFlowTrainer.test_step(cast(TensorFlowTrainer, self), data)
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    y_pred = forward(self, x, training=False)
    loss = loss_on_replica(self, x, y, y_pred, sample_weight, training=False)
    track_loss(self, loss, step)
    return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def forward(model: TrainedModel, x: Any, training: bool) -> Any:
    """The model's outputs; `training` is passed where the model's `call` takes it."""
    return model(x, training=training) if takes_training(model) else model(x)


def track_loss(model: TrainedModel, loss: tf.Tensor, step: StepContext) -> None:
    """Counts the loss into the epoch's mean, weighted with its rows; of a loss without reduction its mean."""
    loss_tracker(model).update_state(tf.reduce_mean(loss), sample_weight=step.rows)


def _zero_unless(alive: Any, gradient: Any) -> Any:
    """The gradient of a replica that has rows; zeros, whatever was computed, for one that has none."""
    if isinstance(gradient, tf.IndexedSlices):
        values = tf.where(alive, gradient.values, tf.zeros_like(gradient.values))
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return tf.where(alive, gradient, tf.zeros_like(gradient))


def predict_on_replica(predict_step: Callable[[Any], Any], data: Any, step: StepContext) -> Any:
    """The outputs for one replica's rows, however many there are for each; none for a borrowed one.

    A layer that draws random numbers in prediction moves its generator on, so that the next batch gets others. The workers
    of parameter servers leave it where it is: they predict in any order.
    """
    with step_scope(step):
        with CollectedWrites() as writes:
            step.writes = writes
            outputs = predict_step(data)
        if not on_parameter_servers():
            make_writes(writes.items(), step, set())
    if step.num_replicas == 1 or step.certainly_alive:
        return outputs
    return keras.tree.map_structure(lambda t: t[: tf.where(step.alive, row_count(t), 0)], outputs)
