"""Stops training in which every step is skipped, and names the layer that causes it."""

from typing import Any, cast

import keras

from .... import mixed_precision
from ....mixed_precision import skipped_steps
from ....optimizers.building import optimizers_of
from ....state.trained_model import TrainedModel
from ..loops.compiled_calls import CompiledCall


def check_progress(model: TrainedModel, call: CompiledCall, done: int) -> None:
    """Raise `LossScaleError` if every step is skipped, with the layer that causes it in the last of `done` steps."""

    def diagnose(loss_scale: float) -> str:
        if not model._runner.in_process:
            return "On parameter servers the layer that overflows cannot be found: run one step on one device"
        chunk = call.chunks[-1]
        batch = chunk.batch(min(done, chunk.steps) - 1)  # of an iterator, which has moved on, the next one
        if batch is None:
            return "The input has ended, so there is no batch to analyse"
        return _explanation(model, batch, loss_scale=loss_scale)

    skipped_steps.check_progress(optimizers_of(model), diagnose)


def optimizer_logs(model: TrainedModel) -> dict[str, Any]:
    """Return the optimizers' additions to the logs: the loss scale and the skipped steps, where there is one."""
    return skipped_steps.step_logs(optimizers_of(model))


def explain_batch(model: TrainedModel, batch: Any) -> tuple[str, list[dict[str, Any]]]:
    """Return a sentence that names non-finite values in a step on `batch`, and the batch's statistics."""
    return _explanation(model, batch), mixed_precision.batch_statistics(batch)


def _explanation(model: TrainedModel, batch: Any, **options: Any) -> str:
    """Name the first layer whose output or gradient on `batch` is not finite, in a sentence; `options` of `diagnose`."""
    try:
        with model._strategy_scope():
            return str(mixed_precision.diagnose(cast(keras.Model, model), batch, **options))
    except Exception as error:  # a custom train_step may need more than the model and a loss
        return f"The layer is not known, because one step computed eagerly fails with {error!r}"
