"""The steps of a model in a pipeline's scope: those of `train_step.py`, with forward and backward in stages."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.layers import layers_of
from ...compat.keras_private.training import unpack_x_y_sample_weight
from ...compat.tensorflow_graphs.one_device import line_of_user
from ...distribute.pipeline.pipeline import current_pipeline
from ...distribute.pipeline.remote import raise_if_lost
from ...distribute.step_context import StepContext, this_step
from ...optimizers.building import optimizers_of
from ...state.trained_model import TrainedModel, record_of
from ..partition.labels import SAMPLES
from ..partition.program import Convert, NotPartitioned
from ..partition.rules import RULES
from ..partition.steps.step import Step
from ..partition.steps.traced_step import TracedStep
from ..run import build
from ..run.fit_loop import Runner
from ..step.train_step import default_train_step, track_loss
from .engine import PipelinedStep, Result
from .loss import head_of, own_loss, track_single_losses
from .micro_batches import micro_slices, micro_steps
from .planning.placement import follow_inputs, move_optimizer_state
from .planning.stage_plan import Plan


def attach(model: TrainedModel) -> None:
    """Assign a model to the pipeline in whose scope this is called; elsewhere it does nothing."""
    pipeline = current_pipeline()
    if pipeline is not None:
        if tf.distribute.has_strategy() or keras.distribution.distribution() is not None:
            raise ValueError(
                "A model must not be made in the scope of a strategy or a distribution inside of a Pipeline's: for data "
                "parallelism use `Pipeline(..., replicas=R)`."
            )
        record_of(model).pipeline = pipeline
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
    plan = model._pipeline.plan(model, samples)
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
    """Loss, gradients and outputs in stages; arguments and result as `train_step.forward_and_backward`."""
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    step, plan = this_step(), model._pipeline.plan(model)
    scale = {} if model.optimizer is None else {"scale": model.optimizer.scale_loss}
    run = _make_pipelined(plan, x, step, training=True, **scale)
    head, by_micro_batch = head_of(model, plan, run, step, x, y, sample_weight)
    result = run.train(plan.jobs, head, by_micro_batch, plan.pipeline.rematerialize)
    for variable, value in result.writes:
        variable.assign(value)
    if by_micro_batch:
        track_single_losses(model, y, result.outputs, sample_weight)
    return result.loss, [result.gradients.get(id(variable)) for variable in variables], result.outputs


def test_step(model: TrainedModel, data: Any) -> dict[str, Any]:
    """Return one step of evaluation, its forward pass in stages."""
    step = this_step()
    x, y, sample_weight = unpack_x_y_sample_weight(data)
    result = _forward(model, x, step)
    with follow_inputs():
        loss = own_loss(model, x, y, result.outputs, sample_weight, training=False)
        loss = loss if result.loss is None else loss + tf.cast(result.loss, loss.dtype)
        track_loss(model, loss, step)
        return model.compute_metrics(x, y, result.outputs, sample_weight=sample_weight)


def predict_step(model: TrainedModel, data: Any) -> Any:
    """Return the outputs for one batch, computed in stages."""
    step = this_step()
    x, _, _ = unpack_x_y_sample_weight(data)
    return _forward(model, x, step).outputs


def _forward(model: TrainedModel, x: Any, step: StepContext) -> Result:
    plan: Plan = model._pipeline.plan(model)
    result = _make_pipelined(plan, x, step, training=False).forward(plan.forward_jobs)
    for variable, value in result.writes:
        variable.assign(value)
    return result


def _make_pipelined(plan: Plan, x: Any, step: StepContext, training: bool, **scale: Any) -> PipelinedStep:
    replicas = plan.pipeline.replicas
    steps = micro_steps(step.samples, plan.pipeline.micro_batches * replicas)
    return PipelinedStep(plan.chain, plan.stages, micro_slices(x, steps), steps, replicas, training, **scale)


class PipelineRunner(Runner):
    """Like the plain runner, with forward and backward passes in stages."""

    @contextlib.contextmanager
    def watch(self, model: TrainedModel) -> Iterator[None]:
        """Name the stage that is lost or hangs, where the block fails because of it."""
        try:
            yield
        except Exception as error:
            raise_if_lost(error, model._pipeline.devices, model._pipeline.stages)
            raise

    def build(
        self, model: TrainedModel, spec: Any, samples: int | None = None, step: str = "train_step"
    ) -> None:
        """Split the built model and move its variables to their stages before the optimizer is built."""
        with model._strategy_scope():
            build.build_for(model, spec, "predict_step")
            prepare(model, samples, training=step == "train_step")
            plan = model._pipeline.plan(model)
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
    causes = (node.cause for node in exchanges if node.cause is not None and node.cause.type in RULES)
    cause = next(causes, None)
    if cause is None:
        return
    line, code = line_of_user(cause)
    place = f" ({line}: `{code}`)" if line else ""
    warnings.warn(
        f"Model {model.name!r} combines the samples of a batch in {cause.name}{place}, and a pipeline computes it for each "
        "micro-batch alone: compute it in `compute_loss`, which gets the whole batch, or use `micro_batches=1` and "
        "`replicas=1`.",
        stacklevel=2,
    )
