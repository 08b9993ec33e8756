"""One more pass of a fit over its training data, in which the model only computes its outputs; for callbacks."""

import contextlib
from collections.abc import Iterator
from typing import Any

import keras

from ...compat.keras_private.training import unpack_x_y_sample_weight
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...state.trained_model import TrainedModel
from ..inputs import Source
from ..step.train_step import forward
from .loops.compiled_calls import CompiledCall
from .loops.loop_choice import LoopedSteps
from .passes import Pass


def why_no_pass(model: TrainedModel, source: Source) -> str | None:
    """Return why `forward_pass` is impossible in this fit, and what to do; None if it is possible."""
    if on_parameter_servers(model.distribute_strategy) or model._pipeline is not None:
        return "parameter servers and pipelines cannot make that pass: use a mirrored strategy"
    if not source.rewinds and source.position.given_steps is None:
        return "`x` is a generator, which cannot be read again: give `steps_per_epoch`, or a keras.utils.PyDataset"
    return None


class _ForwardPass(Pass):
    """One batch in a call, without callbacks."""

    def __init__(self, model: TrainedModel, source: Source, function: LoopedSteps) -> None:
        super().__init__(model, source, keras.callbacks.CallbackList(), "test", function=function)
        self.fixed_steps = 1

    def errors(self, call: CompiledCall) -> contextlib.AbstractContextManager[None]:
        """Entered around the call: the scope of the model's strategy."""
        return self.model._strategy_scope()


def forward_pass(model: TrainedModel, runner: Any) -> Iterator[int]:
    """See `FitState.forward_pass`. Context: host; on every worker."""
    state: Any = model.fit_state

    def step(data: Any) -> dict[str, Any]:
        forward(model, unpack_x_y_sample_weight(data)[0], training=True)
        return {}

    with model._strategy_scope():
        function = LoopedSteps(model, "test", step)
    state.source.begin_epoch(state.epoch)
    model.stop_evaluating = False
    for steps, _ in enumerate(runner.run_steps(_ForwardPass(model, state.source, function)), 1):
        yield steps
