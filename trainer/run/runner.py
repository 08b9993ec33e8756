"""Runs the steps of a model in this process; subclasses run them in a pipeline or on workers of parameter servers."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ...callbacks.call_schedule import steps_until_call
from ...callbacks.trained_model import FitState, TrainedModel
from ...compat.keras_private.training import pythonify_logs
from ...compat.patches import replaced_functions
from ...distribute.arguments import shown
from ...distribute.hardware.devices import wait_for_accelerators
from ..inputs import Source
from ..step.variable_placement import place_with_model
from . import build
from .checks.argument_errors import explained
from .logs.step_logs import record_steps
from .loops import predict_loop
from .loops.compiled_calls import CallLength, compiled_calls
from .loops.loop_choice import loop_for
from .loops.predict_function import PredictFunction
from .loops.step_function import StepFunction
from .worker_settlement import Workers
from .xla.xla_rule import choose_backend, open_sizes


class Runner:
    """Runs steps in this process, or in each worker's process, synchronously with the others.

    It has no state. `runner_of` chooses the class. Context of its methods: host.
    """

    def watching(self, model: TrainedModel) -> contextlib.AbstractContextManager[None]:
        """A block in which the loss of a participating process is reported by name."""
        return contextlib.nullcontext()

    def build(
        self, model: TrainedModel, spec: Any, samples: int | None = None, step: str = "train_step"
    ) -> None:
        """Creates every variable that "train_step", "test_step" or "predict_step" needs for batches of `spec`.

        `samples`: of a global batch, where known.
        """
        predicts = step == "predict_step"
        unbuilt = not (predicts or build.is_built(model))
        with model._strategy_scope(), replaced_functions() if unbuilt else contextlib.nullcontext():
            build.build_for(model, spec, step)
        if not predicts:
            place_with_model(model)  # the model has the metrics of `compile` only now

    def step_of(self, model: TrainedModel, name: str) -> Callable[[Any], Any]:
        """The step "train_step", "test_step" or "predict_step" of a model: a function of a batch."""
        return getattr(model, name)

    def function(self, model: TrainedModel, phase: str) -> Any:
        """The function that runs the steps of "train", "test" or "predict"."""
        step = self.step_of(model, f"{phase}_step")
        if phase == "predict":
            return PredictFunction(model, step)
        return StepFunction(model, phase == "train", step, loop_for)

    def make_function(self, model: TrainedModel, phase: str) -> Any:
        """Calls `make_train_function`, `make_test_function` or `make_predict_function`, and returns what it made.

        Raises:
            ValueError: a user's version made something else, which calls the step for one batch of one device.
        """
        name = f"make_{phase}_function"
        getattr(model, name)()
        function = getattr(model, f"{phase}_function")
        if inspect.isroutine(function) or hasattr(function, "get_concrete_function"):
            raise ValueError(
                f"`{name}` of {type(model).__name__} made `{phase}_function` itself, which does not run here: override "
                f"`{phase}_step` instead, or call `super().{name}(force)` and keep what it makes. Made: {shown(function)}"
            )
        return function

    def begin_steps(self, model: TrainedModel, state: FitState) -> None:
        """Prepares the steps that come next, if they are new: a callback may compile the model, or make them again."""
        if model.train_function is state.function:
            return
        if state.function is not None:
            self.build(model, state.source.spec, state.source.batch_size)
        state.function = self.make_function(model, "train")
        self.begin_fit(model, state)

    def begin_fit(self, model: TrainedModel, state: FitState) -> None:
        """Choose between the plain graph and XLA, by the number of steps in all of the fit."""
        function = model.train_function
        record_steps(model, state.callbacks)
        epochs, recorded = state.epochs - state.first_epoch, function.recorder is not None
        choose_backend(
            function, state.source, _steps_in_all(state.callbacks, "train", state.source, epochs, recorded)
        )

    def train_steps(
        self, model: TrainedModel, state: FitState, callbacks: keras.callbacks.CallbackList
    ) -> dict[str, Any]:
        """The training steps of the epoch, from `state` on; returns the logs after the last."""
        raise NotImplementedError

    def test_steps(
        self,
        model: TrainedModel,
        source: Source,
        callbacks: keras.callbacks.CallbackList,
        passes: int,
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        """One pass over `source`, of `passes` in all: (its last batch, the logs after it) of each compiled call."""
        steps = _steps_in_all(callbacks.callbacks, "test", source, passes)
        choose_backend(model.test_function, source, steps)
        return _pass(model, source, callbacks, "test", "stop_evaluating", pythonify_logs)

    def predict_steps(
        self, model: TrainedModel, source: Source, callbacks: keras.callbacks.CallbackList
    ) -> Iterator[tuple[int, list[Any]]]:
        """One pass over `source`, in order: (its last batch, the outputs of its batches) of each compiled call."""
        source.open_sizes = open_sizes(model, source.steps_per_epoch, predict_loop.FEWEST_STEPS)
        return _pass(model, source, callbacks, "predict", "stop_predicting", list)


def _steps_in_all(
    callbacks: list[Any], phase: str, source: Source, passes: int, recorded: bool = False
) -> int | None:
    """The steps of `passes` passes; 0 where a callback is called after each step, None if their number is unknown."""
    if any(steps_until_call(callback, 0, phase, records_logs=recorded) == 1 for callback in callbacks):
        return 0
    return source.steps_per_epoch * passes if source.steps_per_epoch else None


def _pass(
    model: TrainedModel,
    source: Source,
    callbacks: keras.callbacks.CallbackList,
    phase: str,
    stop: str,
    finish: Callable[[Any], Any],
) -> Iterator[tuple[int, Any]]:
    """(number of the last batch, `finish(result)`) of each compiled call of a pass."""
    function = getattr(model, f"{phase}_function")
    length = CallLength(model._fixed_steps, callbacks.callbacks, phase, function=function)
    workers = Workers(model, stop)
    in_fit = model.fit_state is not None and model.fit_state.validation is source
    argument = "validation_data" if in_fit else ""
    for call in compiled_calls(source, length.next, workers):
        getattr(callbacks, f"on_{phase}_batch_begin")(length.step)
        with explained(model, source.spec, source.batch_size, f"{phase}_step", length.step == 0, argument):
            done, result = function(call, length.step)
        call.report(source, done)
        if done:
            result = finish(result)
            wait_for_accelerators()
            length.done(done)
            yield length.last_batch(done), result
        if (getattr(model, stop) and not workers.several) or done < call.steps:
            break
    workers.check_read(source)
