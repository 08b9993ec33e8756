"""The loops of `evaluate` and `predict`: one pass over an input."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ...callbacks.prediction_writer import PredictionWriter
from ...callbacks.trained_model import TrainedModel
from ...compat.shared_change import shared_attribute
from ...compat.training import convert_to_np_if_not_ragged, potentially_ragged_concat, pythonify_logs
from ...distribute.devices import wait_for_accelerators
from ..inputs import Source
from .callback_list import callback_list
from .checks.argument_errors import check_labels, explained
from .loops.compiled_calls import CallLength, compiled_calls
from .loops.sample_layouts import open_sizes
from .runner import Passes, Runner
from .worker_settlement import Workers


def evaluate(
    model: TrainedModel,
    source: Source,
    verbose: Any,
    callbacks: Any,
    runner: Runner,
    passes: Passes | None = None,
) -> dict[str, Any]:
    """The logs of one pass over `source`; `passes`: state for later passes over it. Context: host."""
    with runner.watching(model), shared_attribute(model, "_evaluating", lambda _: True):
        runner.build(model, source.spec, source.batch_size, training=False)
        check_labels(model, source, "test_step")
        callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
        model.make_test_function()
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        source.begin_epoch(0)
        logs = runner.test_steps(model, source, callbacks, passes or Passes())
        callbacks.on_test_end(logs)
    return logs


def predict(model: TrainedModel, source: Source, verbose: Any, callbacks: Any, runner: Runner) -> Any:
    """The outputs for one pass over `source`, in order. Context: host."""
    with runner.watching(model), contextlib.ExitStack() as at_exit:
        callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
        for callback in callbacks.callbacks:
            if hasattr(callback, "on_predict_exit"):
                at_exit.callback(callback.on_predict_exit)
        writer = next((each for each in callbacks.callbacks if isinstance(each, PredictionWriter)), None)
        runner.build_for_prediction(model, source.spec)
        model.make_predict_function()
        model.stop_predicting = False
        callbacks.on_predict_begin()
        source.begin_epoch(0)
        outputs: list[Any] = []
        take = outputs.extend if writer is None else lambda new: writer.write(concatenated(new))
        steps = runner.predict_steps(model, source, callbacks, take)
        callbacks.on_predict_end()
    if not steps:
        raise ValueError("`predict()` got no batch from `x`: give at least one sample.")
    if writer is not None:
        return writer.outputs()
    return keras.tree.map_structure(convert_to_np_if_not_ragged, concatenated(outputs))


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
    leaves = zip(*[keras.tree.flatten(output) for output in outputs])
    return keras.tree.pack_sequence_as(
        outputs[0], [potentially_ragged_concat(list(parts)) for parts in leaves]
    )
