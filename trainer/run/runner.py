"""Runs the steps of a model in this process; subclasses run them in a pipeline or on workers of parameter servers."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from ...callbacks.call_schedule import steps_until_call
from ...callbacks.fit_state import FitState
from ...callbacks.trained_model import TrainedModel
from ...compat.patches import replaced_functions
from ..inputs import Source
from ..step.variable_placement import place_with_model
from . import build
from . import passes as run_pass
from .logs.step_logs import record_steps
from .loops.loop_choice import loop_for
from .loops.predict_function import PredictFunction
from .loops.step_function import StepFunction
from .xla.xla_choice import XlaChoice


@dataclasses.dataclass(frozen=True)
class Passes:
    """The state for all passes of evaluation over one input.

    Attributes:
        plan: JSON values; how their steps run, see `XlaChoice`. In a fit it is a part of the fit's plan, with which a
            resumed run continues.
        left: the number of passes from this one on.
    """

    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    left: int = 1


class Runner:
    """Runs steps in this process, or in each worker's process, synchronously with the others.

    It has no state. `runner_of` chooses the class. Context of its methods: host.
    """

    def watching(self, model: TrainedModel) -> contextlib.AbstractContextManager[None]:
        """A block in which the loss of a participating process is reported by name."""
        return contextlib.nullcontext()

    def build(self, model: TrainedModel, spec: Any, samples: int | None, training: bool = True) -> None:
        """Creates every variable that training needs: of the model, its metrics and its optimizers.

        Args:
            model: the model.
            spec: nest of `tf.TypeSpec` of one batch.
            samples: int or None; samples of a global batch, where known.
            training: bool; whether the model is going to be trained.
        """
        with model._strategy_scope(), contextlib.ExitStack() as stack:
            if not build.is_built(model):
                stack.enter_context(replaced_functions())
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
        """The function that runs training steps."""
        return StepFunction(model, True, self.step_of(model, "train_step"), loop_for)

    def test_function(self, model: TrainedModel) -> StepFunction:
        """The function that runs steps of evaluation."""
        return StepFunction(model, False, self.step_of(model, "test_step"), loop_for)

    def predict_function(self, model: TrainedModel) -> PredictFunction:
        """Predicts batch after batch, or several in a loop; the stages of a pipeline one batch in a call."""
        step = self.step_of(model, "predict_step")
        return PredictFunction(model, step, in_loops=model._pipeline is None)

    def begin_fit(self, model: TrainedModel, state: FitState) -> None:
        """Chooses between the plain graph and XLA, or prepares a measurement."""
        model.train_function.plan = state.plan
        record_steps(model, state.callbacks)
        function, epochs = model.train_function, state.epochs - state.epoch
        recorded = function.recorder is not None
        ahead = _steps_ahead(state.callbacks, "train", state.source, epochs, state.step, recorded)
        XlaChoice(model, function, state.source, state.plan, ahead)

    def train_steps(
        self, model: TrainedModel, state: FitState, callbacks: keras.callbacks.CallbackList
    ) -> dict[str, Any]:
        """The training steps of the epoch, from `state` on; returns the logs after the last."""
        raise NotImplementedError

    def test_steps(
        self, model: TrainedModel, source: Source, callbacks: keras.callbacks.CallbackList, passes: Passes
    ) -> dict[str, Any]:
        """One pass, in the graph or under XLA."""
        ahead = _steps_ahead(callbacks.callbacks, "test", source, passes.left)
        XlaChoice(model, model.test_function, source, passes.plan, ahead)
        return run_pass.test_steps(model, source, callbacks)

    predict_steps = staticmethod(run_pass.predict_steps)


def _steps_ahead(
    callbacks: list[Any], phase: str, source: Source, passes: int, done: int = 0, recorded: bool = False
) -> int | None:
    """The steps that XLA could run; none where a callback is called after each step; None if their number is unknown."""
    if any(steps_until_call(callback, 0, phase, records_logs=recorded) == 1 for callback in callbacks):
        return 0
    return source.steps_per_epoch * passes - done if source.steps_per_epoch else None
