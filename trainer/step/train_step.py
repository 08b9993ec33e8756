"""One step on a single device: batch -> forward -> loss -> gradients -> optimizer -> metrics -> writes.

`partition/` splits it over replicas; `run/loops/step_function.py` compiles and loops it. Read this file from top to bottom.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, cast

import tensorflow as tf

from ...compat.keras_private.layers import takes_training
from ...compat.keras_private.seed_generators import thread_state
from ...compat.keras_private.training import compute_loss, loss_tracker
from ...compat.tensorflow_graphs.equal_operations import reuse_equal_operations
from ...compat.tensorflow_graphs.graphs import leave_as_written
from ...compat.upstream_places import TensorFlowTrainer, unpack_x_y_sample_weight
from ...distribute.parameter_servers.shards import gradient
from ...distribute.replicas import runs_in_threads
from ...distribute.step_context import ReplicaSamples, StepContext, WeightTotals, current_step, step_scope
from ...optimizers.stages.call_options import CallOptions, call_options
from ...state.trained_model import TrainedModel
from ..inputs.batch import sample_count
from .collected_writes import CollectedWrites


@dataclasses.dataclass
class Tracing:
    """How a step is traced, and findings of the trace.

    Attributes:
        weigh_losses: whether the total sample weights of losses are recorded; see `StepContext.totals`.
        in_xla, calls, open_collectives, attention: see `StepContext`.
        after: operations that must have ended before anything of the step begins, even the drawing of a random number.
    """

    weigh_losses: bool = False
    in_xla: bool = False
    after: Sequence[Any] = ()
    calls: dict[int, Any] = dataclasses.field(default_factory=dict)
    open_collectives: list[tf.TensorShape] = dataclasses.field(default_factory=list)
    attention: set[Any] = dataclasses.field(default_factory=set)


def replica_function(
    strategy: tf.distribute.Strategy,
    step_fn: Callable[[Any], Any],
    data_of: Callable[[], tuple[Any, ReplicaSamples]],
    tracing: Tracing,
) -> Callable[[], Any]:
    """Return the function for `strategy.run` that runs a step on `data_of()`, data and samples, and makes its writes."""
    enter_thread = thread_state().enter if runs_in_threads(strategy) else None

    def run_on_replica() -> Any:
        if enter_thread is not None:
            enter_thread()
        # Without a name scope, so that the tags of summaries do not depend on how steps are looped.
        with tf.name_scope(""), tf.control_dependencies(tracing.after):
            data, samples = data_of()
            step = StepContext(
                **vars(samples),
                in_xla=tracing.in_xla,
                totals=WeightTotals() if tracing.weigh_losses else None,
                calls=tracing.calls,
                open_collectives=tracing.open_collectives,
                attention=tracing.attention,
            )
            with step_scope(step):
                with CollectedWrites() as writes:
                    step.writes = writes
                    results = step_fn(data)
                writes.make(step)
        return results

    return leave_as_written(run_on_replica)


def default_train_step(self: TrainedModel, data: Any) -> dict[str, Any]:
    """Run one step: forward, loss, gradients, update. Override it for a custom step.

    It is the single-device step; on several replicas the optimizer gets their parts of `gradient(scale * loss)`, which it
    all-reduces, unscales, checks, transforms and applies.

    Args:
        self: the model.
        data: the batch, as x, `(x,)`, `(x, y)` or `(x, y, sample_weight)`.

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
    track_loss(self, loss, x)
    if variables:
        with call_options(CallOptions(weight_total=step.weight_total)):
            self.optimizer.apply_gradients(list(zip(gradients, variables)))
    return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def forward_and_backward(model: TrainedModel, variables: list[Any], data: Any) -> tuple[Any, list[Any], Any]:
    """Return the loss, the gradients of `scale * loss` (None where there is none), and the outputs."""
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        y_pred = forward(model, x, training=True)
        loss = compute_loss(model, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=True)
        scaled = loss if model.optimizer is None else model.optimizer.scale_loss(loss)
    with reuse_equal_operations():
        gradients = gradient(tape, scaled, variables) if variables else []
    return loss, gradients, y_pred


def default_test_step(self: TrainedModel, data: Any) -> dict[str, Any]:
    """Run one step of evaluation; arguments and result as `default_train_step`."""
    step = current_step()
    if step is None:
        return TensorFlowTrainer.test_step(cast(TensorFlowTrainer, self), data)
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    y_pred = forward(self, x, training=False)
    loss = compute_loss(self, x=x, y=y, y_pred=y_pred, sample_weight=sample_weight, training=False)
    track_loss(self, loss, x)
    return self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)


def forward(model: TrainedModel, x: Any, training: bool) -> Any:
    """Return the model's outputs; `training` is passed where the model's `call` takes it."""
    return model(x, training=training) if takes_training(model) else model(x)


def track_loss(model: TrainedModel, loss: tf.Tensor, x: Any) -> None:
    """Add the loss to the epoch's mean, weighted with the samples of `x`; a loss without reduction by its mean."""
    loss_tracker(model).update_state(tf.reduce_mean(loss), sample_weight=sample_count(x))
