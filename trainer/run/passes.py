"""One pass over an input in this process: an evaluation or a prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras

from ...callbacks.trained_model import TrainedModel
from ...compat.keras_private.training import potentially_ragged_concat, pythonify_logs
from ...distribute.hardware.devices import wait_for_accelerators
from ..inputs import Source
from .checks.argument_errors import explained
from .loops.compiled_calls import CallLength, compiled_calls
from .loops.sample_layouts import open_sizes
from .worker_settlement import Workers


def test_steps(
    model: TrainedModel, source: Source, callbacks: keras.callbacks.CallbackList
) -> dict[str, Any]:
    """One pass over `source` in this process, whose `open_sizes` are set; returns the logs after the last step."""
    logs: dict[str, Any] = {}
    for batch, logs in _pass(model, source, callbacks, "test", "stop_evaluating", pythonify_logs):
        callbacks.on_test_batch_end(batch, logs)
    return logs


def predict_steps(
    model: TrainedModel,
    source: Source,
    callbacks: keras.callbacks.CallbackList,
    take: Callable[[list[Any]], None],
) -> int:
    """Passes the outputs of every batch of `source` to `take`, in order, computed in this process; returns their number."""
    steps = 0
    source.open_sizes = open_sizes(model, source.steps_per_epoch, predicting=True)
    for batch, outputs in _pass(model, source, callbacks, "predict", "stop_predicting", list):
        steps += len(outputs)
        take(outputs)
        callbacks.on_predict_batch_end(batch, {"outputs": concatenated(outputs)})
    return steps


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
            length.done(done, call if phase == "test" else None)
            yield length.last_batch(done), result
        if (getattr(model, stop) and not workers.several) or done < call.steps:
            return


def concatenated(outputs: list[Any]) -> Any:
    """The concatenated outputs of several batches."""
    leaves = [potentially_ragged_concat(list(parts)) for parts in zip(*map(keras.tree.flatten, outputs))]
    return keras.tree.pack_sequence_as(outputs[0], leaves)
