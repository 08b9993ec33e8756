"""Runs the steps of a model in a pipeline's scope: like the plain runner, with forward and backward passes in stages."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from ...callbacks.trained_model import TrainedModel
from ..run import build
from ..run.fit_loop import LocalRunner
from . import step as steps


class PipelineRunner(LocalRunner):
    """See `Runner`."""

    @contextlib.contextmanager
    def watching(self, model: TrainedModel) -> Iterator[None]:
        """Names the stage that is lost or hangs, where the block fails because of it."""
        try:
            yield
        except Exception as error:
            model._pipeline.raise_if_lost(error)
            raise

    def build(
        self, model: TrainedModel, spec: Any, samples: int | None = None, step: str = "train_step"
    ) -> None:
        """Splits the built model and moves its variables to their stages before the optimizer is built."""
        with model._strategy_scope():
            build.build_for(model, spec, "predict_step")
            steps.prepare(model, samples, training=step == "train_step")
        if step != "predict_step":
            super().build(model, spec, samples, step)

    def step_of(self, model: TrainedModel, name: str) -> Callable[[Any], Any]:
        """The step, its passes in stages."""
        return functools.partial(getattr(steps, name), model)
