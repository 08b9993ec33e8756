"""The plain runner of a model's steps: in this process, or in each worker's process, synchronously with the others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras

from ...callbacks.call_schedule import steps_until_call
from ...callbacks.fit_state import FitState
from ...callbacks.trained_model import TrainedModel
from ...compat.patches import replaced_functions
from ..inputs import Source
from ..step.variable_placement import place_with_model
from . import build, evaluation_loops, fit_loop
from .logs.step_logs import record_steps
from .loops.loop_choice import loop_for
from .loops.predict_function import PredictFunction
from .loops.step_function import StepFunction
from .runner import Passes
from .xla.xla_choice import XlaChoice


class PlainRunner:
    """See `Runner`."""

    def watching(self, model: TrainedModel) -> contextlib.AbstractContextManager[None]:
        """Monitors the workers at their collectives."""
        return contextlib.nullcontext()

    def build(self, model: TrainedModel, spec: Any, samples: int | None, training: bool = True) -> None:
        """Creates the variables."""
        functions = contextlib.nullcontext() if build.is_built(model) else replaced_functions()
        with functions, model._strategy_scope():
            build.build_for(model, spec, training)
        place_with_model(model)  # the model has the metrics of `compile` only now

    def build_for_prediction(self, model: TrainedModel, spec: Any) -> None:
        """Creates the variables of the model."""
        with model._strategy_scope():
            build.build_for_prediction(model, spec)

    def step_of(self, model: TrainedModel, name: str) -> Callable[[Any], Any]:
        """The step "train_step", "test_step" or "predict_step" of a model: a function of a batch."""
        return getattr(model, name)

    def train_function(self, model: TrainedModel) -> StepFunction:
        """Loops over training steps."""
        return StepFunction(model, True, self.step_of(model, "train_step"), loop_for)

    def test_function(self, model: TrainedModel) -> StepFunction:
        """Loops over steps of evaluation."""
        return StepFunction(model, False, self.step_of(model, "test_step"), loop_for)

    def predict_function(self, model: TrainedModel) -> PredictFunction:
        """Predicts batch after batch, or several in a loop; the stages of a pipeline one batch in a call."""
        step = self.step_of(model, "predict_step")
        return PredictFunction(model, step, in_loops=model._pipeline is None)

    def begin_fit(self, model: TrainedModel, state: FitState) -> None:
        """Chooses between the plain graph and XLA, or prepares a measurement."""
        model.train_function.plan = state.plan
        record_steps(model, state.callbacks)
        records = model.train_function.recorder is not None
        ahead = None
        if any(steps_until_call(callback, 0, records_logs=records) == 1 for callback in state.callbacks):
            ahead = 0
        elif state.source.steps_per_epoch:
            ahead = state.source.steps_per_epoch * (state.epochs - state.epoch) - state.step
        XlaChoice(model, model.train_function, state.source, state.plan, ahead)

    def test_steps(
        self, model: TrainedModel, source: Source, callbacks: keras.callbacks.CallbackList, passes: Passes
    ) -> dict[str, Any]:
        """One pass, in the graph or under XLA."""
        ahead = None
        if any(steps_until_call(callback, 0, "test") == 1 for callback in callbacks.callbacks):
            ahead = 0
        elif source.steps_per_epoch:
            ahead = source.steps_per_epoch * passes.left
        XlaChoice(model, model.test_function, source, passes.plan, ahead)
        return evaluation_loops.test_steps(model, source, callbacks)

    train_steps = staticmethod(fit_loop.train_steps)
    predict_steps = staticmethod(evaluation_loops.predict_steps)
