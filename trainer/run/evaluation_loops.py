"""The loops of `evaluate` and `predict`: one pass over an input."""

from __future__ import annotations

from typing import Any

import keras

from ...compat.training import convert_to_np_if_not_ragged, potentially_ragged_concat, pythonify_logs
from ..inputs import Source
from ..parameter_servers import training as async_evaluate
from ..parameter_servers import training as async_fit
from ..pipeline.step import names_lost_stages
from .callback_list import callback_list
from .execution_length import Pace
from .executions import executions, noted, run
from .worker_settlement import Workers


@names_lost_stages
@async_fit.names_lost_servers
def evaluate(model: Any, source: Source, verbose: Any, callbacks: Any) -> dict[str, Any]:
    """The logs of one pass over `source`. Context: host."""
    model.build_for(source.spec, source.batch_rows, training=False)
    callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
    model.make_test_function()
    model.stop_evaluating = False
    callbacks.on_test_begin()
    model.reset_metrics()
    source.begin_epoch(0)
    if async_fit.is_asynchronous(model):
        logs = async_evaluate.test_steps(model, source, callbacks)
        callbacks.on_test_end(logs)
        return logs
    fixed = None if model._auto_steps else model.steps_per_execution
    pace = Pace(fixed, callbacks.callbacks, "test", function=model.test_function)
    logs: dict[str, Any] = {}
    workers = Workers(model, "stop_evaluating")
    for chunks in executions(source, lambda: workers.settle(pace.next()), workers):
        callbacks.on_test_batch_begin(pace.step)
        done, new = run(model.test_function, chunks, source, pace.step)
        if done:
            logs = pythonify_logs(new)
            pace.done(done)
            callbacks.on_test_batch_end(pace.last_batch(done), logs)
        if (model.stop_evaluating and not workers.several) or not chunks.all_steps_ran(done):
            break
    callbacks.on_test_end(logs)
    return logs


@names_lost_stages
@async_fit.names_lost_servers
def predict(model: Any, source: Source, verbose: Any, callbacks: Any) -> Any:
    """The outputs for one pass over `source`, in order. Context: host."""
    callbacks = callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
    model.build_for_prediction(source.spec)
    model.make_predict_function()
    model.stop_predicting = False
    callbacks.on_predict_begin()
    source.begin_epoch(0)
    if async_fit.is_asynchronous(model):
        return _end_of_prediction(async_evaluate.predict_steps(model, source, callbacks, _joined), callbacks)
    fixed = None if getattr(model, "_auto_steps", True) else model.steps_per_execution
    pace = Pace(fixed, callbacks.callbacks, "predict")
    collected: list[Any] = []
    workers = Workers(model, "stop_predicting")
    for chunks in executions(source, lambda: workers.settle(pace.next()), workers):
        callbacks.on_predict_batch_begin(pace.step)
        done, outputs = 0, []
        for chunk in chunks.chunks:
            with noted(model.predict_function, pace.step + done):
                ran, answers = model.predict_function(chunk)
            done += ran
            outputs.extend(answers)
            if ran < chunk.steps:
                source.drawn(ran)
                break
        if done:
            pace.done(done)
            collected.extend(outputs)
            callbacks.on_predict_batch_end(pace.last_batch(done), {"outputs": _joined(outputs)})
        if (model.stop_predicting and not workers.several) or not chunks.all_steps_ran(done):
            break
    return _end_of_prediction(collected, callbacks)


def _end_of_prediction(collected: list[Any], callbacks: Any) -> Any:
    callbacks.on_predict_end()
    if not collected:
        raise ValueError("`predict()` got no batch from `x`: give at least one row.")
    return keras.tree.map_structure(convert_to_np_if_not_ragged, _joined(collected))


def _joined(outputs: list[Any]) -> Any:
    leaves = zip(*[keras.tree.flatten(output) for output in outputs])
    return keras.tree.pack_sequence_as(
        outputs[0], [potentially_ragged_concat(list(parts)) for parts in leaves]
    )
