"""The steps of a model in a pipeline's scope: those of `train_step.py`, with forward and backward in stages."""

import contextlib
import dataclasses
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import layers_of, without_layer_losses
from ...compat.keras_private.training import compiled_loss, compute_loss, flat_losses, overrides_compute_loss
from ...compat.tensorflow_graphs.one_device import line_of_user
from ...compat.upstream_places import unpack_x_y_sample_weight
from ...distribute.pipeline.pipeline import Pipeline, current_pipeline
from ...distribute.pipeline.remote import raise_if_lost
from ...distribute.step_context import StepContext, WeightTotals, step_scope, this_step
from ...optimizers.building import optimizers_of
from ...state.trained_model import TrainedModel, record_of
from ..partition.labels import SAMPLES
from ..partition.operations import row_of
from ..partition.program import Convert, NotPartitioned
from ..partition.steps.step import Step
from ..partition.steps.traced_step import TracedStep
from ..run import build
from ..run.fit_loop import Runner
from ..step.global_loss import works_on_samples
from ..step.train_step import default_train_step, track_loss
from .engine import Head, PipelinedStep, Result
from .micro_batches import micro_slices, micro_steps
from .planning.placement import follow_inputs, move_optimizer_state
from .planning.stage_plan import Plan


def attach(model: TrainedModel) -> None:
    """Assign a model to the pipeline in whose scope this is called; elsewhere it does nothing."""
    pipeline = current_pipeline()
    if pipeline is not None:
        if tf.distribute.has_strategy() or keras.distribution.distribution() is not None:
            raise ValueError(
                "A model must not be created in the scope of a strategy or a distribution inside a Pipeline's scope: for "
                "data parallelism use `Pipeline(..., replicas=R)`."
            )
        record_of(model).runner = PipelineRunner(pipeline)
        pipeline.remember(model)


def prepare(model: TrainedModel, samples: int | None, training: bool) -> None:
    """Split a built model, and reject what a pipeline does not support; `samples` of a global batch, where known."""
    for name in ("train_step", "test_step", "predict_step"):
        if model._overrides_step(name):
            raise ValueError(
                f"{type(model).__name__}.{name} is a custom step, which a pipeline cannot cut into stages: "
                f"move its computation into layers, compute_loss or compute_metrics, or train without a Pipeline"
            )
    if model.run_eagerly is False and getattr(model, "jit_compile", False) is True:
        raise ValueError(
            "jit_compile=True is not possible in a Pipeline, since XLA compiles for one device: "
            "use jit_compile='auto' or False"
        )
    plan = model._runner.pipeline.plan(model, samples)
    for optimizer in optimizers_of(model):
        for part in (optimizer, getattr(optimizer, "inner_optimizer", None)):
            if part is not None and part.built and part not in plan.optimizers:
                move_optimizer_state(part, plan.stages)
                plan.optimizers.add(part)
    if training:
        plan.check_batch_size(samples)
        plan.check_statistics()


def train_step(model: TrainedModel, data: Any) -> dict[str, Any]:
    """Return the step of every model, in stages, with one overflow check and one global norm. Context: replica."""
    this_step().compute = forward_and_backward
    with follow_inputs():
        return default_train_step(model, data)


def forward_and_backward(model: TrainedModel, variables: list[Any], data: Any) -> tuple[Any, list[Any], Any]:
    """Compute loss, gradients and outputs in stages; arguments and result as `train_step.forward_and_backward`."""
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    step, plan = this_step(), model._runner.pipeline.plan(model)
    scale = {} if model.optimizer is None else {"scale": model.optimizer.scale_loss}
    run = _make_pipelined(plan, x, step, training=True, **scale)
    head, by_micro_batch = _head_of(model, plan, run, step, x, y, sample_weight)
    result = run.train(plan.jobs, head, by_micro_batch, plan.pipeline.rematerialize)
    for variable, value in result.writes:
        variable.assign(value)
    if by_micro_batch:
        _track_single_losses(model, y, result.outputs, sample_weight)
    return result.loss, [result.gradients.get(id(variable)) for variable in variables], result.outputs


def test_step(model: TrainedModel, data: Any) -> dict[str, Any]:
    """Run one step of evaluation, its forward pass in stages."""
    step = this_step()
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    result = _forward(model, x, step)
    with follow_inputs():
        loss = _own_loss(model, x, y, result.outputs, sample_weight, training=False)
        loss = loss if result.loss is None else loss + tf.cast(result.loss, loss.dtype)
        track_loss(model, loss, x)
        return model.compute_metrics(x, y, result.outputs, sample_weight=sample_weight)


def predict_step(model: TrainedModel, data: Any) -> Any:
    """Return the outputs for one batch, computed in stages."""
    step = this_step()
    x, _, _ = unpack_x_y_sample_weight(data)
    return _forward(model, x, step).outputs


def _forward(model: TrainedModel, x: Any, step: StepContext) -> Result:
    plan: Plan = model._runner.pipeline.plan(model)
    result = _make_pipelined(plan, x, step, training=False).forward(plan.forward_jobs)
    for variable, value in result.writes:
        variable.assign(value)
    return result


def _make_pipelined(plan: Plan, x: Any, step: StepContext, training: bool, **scale: Any) -> PipelinedStep:
    replicas = plan.pipeline.replicas
    steps = micro_steps(step.samples, plan.pipeline.micro_batches * replicas)
    for each in steps:
        each.attention = step.attention
    return PipelinedStep(plan.chain, plan.stages, micro_slices(x, steps), steps, replicas, training, **scale)


class PipelineRunner(Runner):
    """Like the plain runner, with forward and backward passes in the stages of a `Pipeline`."""

    partitions = False
    moves_variables = True
    no_xla = "the stages of a pipeline are on several devices, and XLA compiles for one"
    home, cure = "for a Pipeline", "leave out the Pipeline"
    all_of = " (of all stages)"
    normalizes = ("each micro-batch apart",)

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.place = f"{len(pipeline.devices)} devices (Pipeline, {pipeline.stages} stages)"
        self.rematerialization = None if pipeline.rematerialize else "`Pipeline(rematerialize=True)`"

    def parts(self, model: TrainedModel) -> int:
        """Return the number of micro-batches of all replicas."""
        return self.pipeline.micro_batches * self.pipeline.replicas

    @contextlib.contextmanager
    def watch(self, model: TrainedModel) -> Iterator[None]:
        """Name the stage that is lost or hangs, where the block fails because of it."""
        try:
            yield
        except Exception as error:
            raise_if_lost(error, self.pipeline.devices, self.pipeline.stages)
            raise

    def build(
        self, model: TrainedModel, spec: Any, samples: int | None = None, step: str = "train_step"
    ) -> None:
        """Split the built model and move its variables to their stages before the optimizer is built."""
        with model._strategy_scope():
            build.build_for(model, spec, "predict_step", samples)
            known = None if step == "predict_step" else samples  # predictions decide nothing about the stages
            prepare(model, known, training=step == "train_step")
            plan = self.pipeline.plan(model)
            if step == "train_step" and plan.parts > 1 and not plan.samples_checked:
                plan.samples_checked = True
                warn_of_mixed_samples(model, spec)
        if step != "predict_step":
            super().build(model, spec, samples, step)

    def step_of(self, model: TrainedModel, name: str) -> Callable[[Any], Any]:
        """Return the step, its passes in stages."""
        steps = {"train_step": train_step, "test_step": test_step, "predict_step": predict_step}
        return functools.partial(steps[name], model)


def warn_of_mixed_samples(model: TrainedModel, spec: Any) -> None:
    """Warn of the first operation that needs other samples of its batch, by its rule, in a trace. Context: host."""
    x, _, _ = unpack_x_y_sample_weight(spec)
    step = Step(
        lambda batch: model(batch, training=True),
        tf.distribute.get_strategy(),
        "The model",
        layers_of(model),
        model.variables,
        SAMPLES,
    )
    try:
        program = TracedStep(step, x).program
    except NotPartitioned:
        return
    exchanges = (n for n in program.nodes if isinstance(n, Convert) and program.communicates(n))
    causes = (node.cause for node in exchanges if node.cause is not None and row_of(node.cause).has_rule)
    cause = next(causes, None)
    if cause is None:
        return
    line, code = line_of_user(cause)
    place = f" ({line}: `{code}`)" if line else ""
    warnings.warn(
        f"Model {model.name!r} combines the samples of a batch in {cause.name}{place}, but a pipeline computes it "
        "separately for each micro-batch: compute it in `compute_loss`, which gets the whole batch, or use "
        "`micro_batches=1` and `replicas=1`.",
        stacklevel=2,
    )


def _head_of(
    model: TrainedModel, plan: Plan, run: PipelinedStep, step: StepContext, x: Any, y: Any, sample_weight: Any
) -> tuple[Head, bool]:
    """Return the loss of the outputs, and whether it is of each micro-batch alone, as 1F1B's next passes need it."""

    def of_all(q: int | None, outputs: Any) -> tf.Tensor:
        with step_scope(step):
            return _own_loss(model, x, y, outputs, sample_weight, training=True)

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
            loss = _own_loss(model, x_q, y_q, outputs, weight_q, training=True)
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


def _own_loss(
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


def _track_single_losses(model: TrainedModel, y: Any, outputs: Any, sample_weight: Any) -> None:
    """Update the metrics of several outputs' losses, on the whole batch: their writes for micro-batches are dropped."""
    compiled = compiled_loss(model)
    if compiled is not None and compiled.metrics and not overrides_compute_loss(model):
        compiled(y, outputs, sample_weight)


def _works_on_samples(model: TrainedModel) -> bool:
    """Return whether the loss of a batch is the exact mean of its parts' losses."""
    if overrides_compute_loss(model):
        return False
    flattest = min(model._runner.pipeline.plan(model).chain.graph.outputs, key=lambda each: len(each.shape))
    return all(
        works_on_samples(loss, flattest) and loss.reduction not in (None, "none")
        for loss in flat_losses(model)
    )
