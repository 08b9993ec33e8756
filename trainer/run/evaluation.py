"""`evaluate` and `predict`: one pass over an input, and the callbacks around it."""

from __future__ import annotations

import contextlib
from typing import Any

import keras

from ...compat.keras_private.training import convert_to_np_if_not_ragged, potentially_ragged_concat
from ...compat.shared_change import shared_attribute
from ...state.trained_model import TrainedModel
from ..inputs import Source
from .callback_list import callback_list
from .checks.argument_errors import check_labels
from .runner import Runner


def evaluate(
    model: TrainedModel,
    source: Source,
    verbose: Any,
    callbacks: Any,
    runner: Runner,
    passes: int = 1,
) -> dict[str, Any]:
    """The logs of one pass over `source`, of `passes` in all. Context: host."""
    with runner.watching(model), shared_attribute(model, "_evaluating", lambda _: True):
        runner.build(model, source.spec, source.batch_size, "test_step")
        check_labels(model, source, "test_step")
        callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
        runner.make_function(model, "test")
        model.stop_evaluating = False
        callbacks.on_test_begin()
        model.reset_metrics()
        source.begin_epoch(0)
        logs: dict[str, Any] = {}
        for batch, logs in runner.test_steps(model, source, callbacks, passes):
            callbacks.on_test_batch_end(batch, logs)
        callbacks.on_test_end(logs)
    return logs


def predict(model: TrainedModel, source: Source, verbose: Any, callbacks: Any, runner: Runner) -> Any:
    """The outputs for one pass over `source`, in order. Context: host."""
    with runner.watching(model), contextlib.ExitStack() as at_exit:
        callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
        for callback in callbacks.callbacks:
            if hasattr(callback, "on_predict_exit"):
                at_exit.callback(callback.on_predict_exit)
        taking = [each for each in callbacks.callbacks if hasattr(each, "take_outputs")]
        runner.build(model, source.spec, step="predict_step")
        runner.make_function(model, "predict")
        model.stop_predicting = False
        callbacks.on_predict_begin()
        source.begin_epoch(0)
        outputs: list[Any] = []
        batch = -1
        for batch, new in runner.predict_steps(model, source, callbacks):
            joined = concatenated(new)
            outputs += [] if taking else new
            for callback in taking:
                callback.take_outputs(joined)
            callbacks.on_predict_batch_end(batch, {"outputs": joined})
        callbacks.on_predict_end()
    if batch < 0:
        raise ValueError("`predict()` got no batch from `x`: give at least one sample.")
    if taking:
        return taking[0].outputs()
    return keras.tree.map_structure(convert_to_np_if_not_ragged, concatenated(outputs))


def concatenated(outputs: list[Any]) -> Any:
    """The concatenated outputs of several batches."""
    leaves = [potentially_ragged_concat(list(parts)) for parts in zip(*map(keras.tree.flatten, outputs))]
    return keras.tree.pack_sequence_as(outputs[0], leaves)
