"""Stops training in which every step is skipped, and names the layer that causes it."""

from __future__ import annotations

from typing import Any, cast

import keras

from .... import mixed_precision
from ....callbacks.trained_model import TrainedModel
from ....mixed_precision import skipped_steps
from ....optimizers.held_optimizers import optimizers_of
from ...inputs import Chunk


def check_progress(model: TrainedModel, chunk: Chunk, done: int) -> None:
    """Stops training if every step is skipped.

    Args:
        model: the model.
        chunk: the last chunk.
        done: steps of the compiled call; the last one of the chunk is analysed.

    Raises:
        LossScaleError: names the first layer whose output or gradient is not finite.

    Context: host, after a compiled call.
    """

    def diagnose(loss_scale: float) -> str:
        batch = chunk.batch(min(done, chunk.steps) - 1)  # of an iterator, which has moved on, the next one
        if batch is None:
            return "The input has ended, so there is no batch to analyse"
        return explanation(model, batch, loss_scale=loss_scale)

    skipped_steps.check_progress(optimizers_of(model), diagnose)


def explanation(model: TrainedModel, batch: Any, **options: Any) -> str:
    """A sentence that names the first layer whose output or gradient on `batch` is not finite; `options` of `diagnose`."""
    try:
        with model._strategy_scope():
            return str(mixed_precision.diagnose(cast(keras.Model, model), batch, **options))
    except Exception as error:  # a custom train_step may need more than the model and a loss
        return f"The layer is not known, because one step computed eagerly fails with {error!r}"
