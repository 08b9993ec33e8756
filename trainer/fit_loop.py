"""The loops of `fit`, `evaluate` and `predict`: epochs, executions and callbacks, in the order in which they happen.

The loop owns the calendar and nothing else: `FitState` says where it stands, `Pace` how long an execution is, the source
where the data comes from, the step functions what is computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import warnings
from typing import Any

import keras
import tensorflow as tf

from ..callbacks.fit_state import FitState
from ..callbacks.one_batch import one_batch_of_everything
from ..callbacks.progress import ProgressBar
from ..callbacks.quiet import only_chief_writes
from ..callbacks.wake import steps_to_wake
from ..distribute.agreement import spans_workers
from ..distribute.cluster import is_chief
from . import async_evaluate, async_fit, checks, tuner
from .exact_metrics import give_first_replica_the_state
from .keras_internals import (
    convert_to_np_if_not_ragged,
    potentially_ragged_concat,
    pythonify_logs,
    unpack_x_y_sample_weight,
)
from .overflow import check_progress
from .pace import Pace
from .sources import Chunk, Source, make_source, split_for_validation
from .sources.make import kind_of
from .sources.rows import batch_spec
from .workers import Workers, check_same_fit, same_random


@dataclasses.dataclass
class FitArguments:
    """The arguments of `fit`, as they came; `batch_size` is the global batch."""

    x: Any
    y: Any
    sample_weight: Any
    batch_size: int | None
    epochs: int
    verbose: Any
    callbacks: Any
    validation_split: float
    validation_data: Any
    shuffle: Any
    class_weight: Any
    initial_epoch: int
    steps_per_epoch: int | None
    validation_steps: int | None
    validation_batch_size: int | None
    validation_freq: Any
    fast_dev_run: bool = False


@async_fit.names_lost_servers
def fit(model: Any, a: FitArguments) -> keras.callbacks.History:
    """Trains for `epochs` epochs. Context: host."""
    checks.check_fit(a)
    if a.fast_dev_run:
        a.callbacks, a.validation_freq = one_batch_of_everything(a.callbacks), 1
    source, validation = _sources(model, a)
    state: FitState | None = None
    only_here = contextlib.ExitStack()
    try:
        model.build_for(source.spec, source.batch_rows)
        check_same_fit(model, source, validation, {"epochs": a.epochs, "initial_epoch": a.initial_epoch})
        given = (
            a.callbacks.callbacks if isinstance(a.callbacks, keras.callbacks.CallbackList) else a.callbacks
        )
        only_here.enter_context(only_chief_writes(keras.tree.flatten(given or []), is_chief()))
        callbacks = _callback_list(
            model, a.callbacks, a.verbose, a.epochs, source.steps_per_epoch, add_history=True
        )
        state = FitState(
            epoch=a.initial_epoch,
            epochs=_cap(a.epochs),
            steps_per_epoch=source.steps_per_epoch,
            source=source,
            callbacks=callbacks.callbacks,
            chief=is_chief(),
            settles_exit=spans_workers(model.distribute_strategy),
        )
        model.fit_state = state
        model.stop_training = False
        model.make_train_function()
        callbacks.on_train_begin()
        if model._initial_epoch:  # a callback of Keras may set it in on_train_begin
            state.epoch = model._initial_epoch
        _choose_way(model, a, state)
        logs = None
        workers = Workers(model, "stop_training")
        while state.epoch < state.epochs and not workers.stopped():
            logs = _epoch(model, a, state, callbacks, validation) or logs
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and a.epochs > 0:
            with model.strategy_scope():
                model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=logs)
        return model.history
    finally:
        for callback in () if state is None else state.callbacks:
            if hasattr(callback, "on_fit_exit"):
                callback.on_fit_exit()
        model.fit_state = None
        only_here.close()
        source.close()
        if validation is not None:
            validation.close()


def _choose_way(model: Any, a: FitArguments, state: FitState) -> None:
    """The way in which steps are run in this fit; a resumed one repeats the choice that its backup holds."""
    model.train_function.full_rows = state.source.batch_rows
    if async_fit.is_asynchronous(model):
        return
    if "way" not in state.plan:
        ahead = None
        if state.source.steps_per_epoch:
            ahead = state.source.steps_per_epoch * (state.epochs - state.epoch) - state.step
        alone = any(steps_to_wake(callback, 0) == 1 for callback in state.callbacks)
        choice = tuner.choose(model, state.source, 0 if alone else ahead)
        state.plan["way"] = choice.way
        if choice.measured and a.verbose not in (0, False):
            print(f"Steps run {tuner.IN_WORDS[choice.way]}: {choice.reason}.")
    model.train_function.way = state.plan["way"]


def _sources(model: Any, a: FitArguments) -> tuple[Source, Source | None]:
    strategy = model.distribute_strategy
    x, y, sample_weight, validation_data = a.x, a.y, a.sample_weight, a.validation_data
    if a.validation_split and validation_data is None:
        (x, y, sample_weight), validation_data = split_for_validation(
            x, y, sample_weight, validation_split=a.validation_split
        )
    source = make_source(
        x,
        y,
        sample_weight,
        batch_size=a.batch_size,
        steps_per_epoch=a.steps_per_epoch,
        shuffle=a.shuffle,
        class_weight=a.class_weight,
        seed=same_random(model, random.randrange(2**31)) if a.shuffle else 0,
        strategy=strategy,
    )
    if validation_data is None:
        return source, None
    val_x, val_y, val_weight = unpack_x_y_sample_weight(validation_data)
    validation = make_source(
        val_x,
        val_y,
        val_weight,
        batch_size=a.batch_size
        if a.validation_batch_size is None and _takes_batch_size(val_x)
        else a.validation_batch_size,
        steps_per_epoch=a.validation_steps,
        strategy=strategy,
    )
    return source, validation


def _takes_batch_size(x: Any) -> bool:
    return kind_of(x) == "array"


def _cap(epochs: int) -> int:
    most = keras.config.max_epochs()
    if most and most < epochs:
        warnings.warn(f"Limiting epochs to {most}", stacklevel=4)
        return most
    return epochs


def _callback_list(
    model: Any, callbacks: Any, verbose: Any, epochs: int, steps: int | None, add_history: bool = False
) -> keras.callbacks.CallbackList:
    """Keras' list, with the callbacks that must see the work of the others (backups) at its end."""
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks.sort(key=lambda callback: bool(getattr(callback, "runs_last", False)))
        return callbacks
    callbacks = keras.tree.flatten(callbacks) if callbacks else []
    if verbose != 0 and not any(isinstance(c, keras.callbacks.ProgbarLogger) for c in callbacks):
        callbacks = [*callbacks, ProgressBar()]
    result = keras.callbacks.CallbackList(
        callbacks,
        add_history=add_history,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )
    result.callbacks.sort(key=lambda callback: bool(getattr(callback, "runs_last", False)))
    return result


def _epoch(
    model: Any, a: FitArguments, state: FitState, callbacks: Any, validation: Source | None
) -> dict[str, Any]:
    """One epoch, from the step where `state` stands."""
    epoch = state.epoch
    resumed = state.step > 0 or bool(state.epoch_logs)
    if not resumed:
        model.reset_metrics()
        state.source.begin_epoch(epoch)
    callbacks.on_epoch_begin(epoch)
    if state.after_epoch_begin is not None:
        state.after_epoch_begin()
        state.after_epoch_begin = None
    logs = state.epoch_logs or _train_steps(model, state, callbacks, a.initial_epoch)
    if not logs:  # the source has warned that its data ran out
        model.stop_training = True
        return {}
    state.epoch_logs = dict(logs)
    if validation is not None and model._should_eval(epoch, a.validation_freq):
        state.times.lap("other")
        val_logs = evaluate(model, validation, a.verbose, callbacks)
        state.times.lap("validation")
        logs = {**logs, **{f"val_{name}": value for name, value in val_logs.items()}}
    state.epoch_logs = {}
    callbacks.on_epoch_end(epoch, logs)
    state.times.lap("callbacks")
    state.epoch, state.step, state.step_logs = epoch + 1, 0, {}
    return logs


def _train_steps(model: Any, state: FitState, callbacks: Any, first_epoch: int) -> dict[str, Any]:
    """The training steps of the epoch; returns the logs after the last, or nothing if the data had run out."""
    fixed = None if model._auto_steps else model.steps_per_execution
    pace = Pace(fixed, callbacks.callbacks, step=state.step, function=model.train_function)
    logs: dict[str, Any] = state.step_logs
    started = state.step
    if model.stop_training:  # a resumed run: it had been stopped after this step
        return logs
    if async_fit.is_asynchronous(model):
        return async_fit.train_steps(model, state, callbacks)
    lap = state.times.lap
    lap("other")
    workers = Workers(model, "stop_training")
    for chunks in _executions(state.source, lambda: workers.settle(pace.next()), workers):
        lap("input")
        state.execution = chunks
        callbacks.on_train_batch_begin(state.step)
        lap("callbacks")
        done, new = _run(model.train_function, chunks, state.source)
        if done:
            logs = pythonify_logs({**new, **model.optimizer_logs()})
            state.step += done
            state.step_logs = logs
            check_progress(model, chunks.chunks[-1], done)
            pace.done(done)
            lap("compute")
            callbacks.on_train_batch_end(pace.last_batch(done), logs)
            lap("callbacks")
        if (model.stop_training and not workers.several) or not chunks.all_steps_ran(done):
            break
    if state.steps_per_epoch is None and not model.stop_training:
        state.steps_per_epoch = state.step
    if state.step == started == 0 and state.epoch == first_epoch:
        raise ValueError("The input gave no batch: give a dataset or generator that has at least one.")
    return logs


class _Execution:
    """The chunks of one execution. A chunk holds batches of one size, so the last partial batch is one of its own."""

    def __init__(self, chunks: list[Chunk]) -> None:
        self.chunks = chunks
        self.steps = sum(chunk.steps for chunk in chunks)

    def all_steps_ran(self, done: int) -> bool:
        """Whether the input may have more: an open-ended one that gave fewer steps has ended."""
        return done == self.steps


def _executions(source: Source, steps: Any, workers: Workers) -> Any:
    """The epoch's executions: each as many steps as `steps()` says, fewer at its end; none after it says 0.

    An error of the input comes after the steps on the batches before it.
    """
    failure: Exception | None = None
    while failure is None:
        wanted = steps()
        chunks: list[Chunk] = []
        while wanted > 0:
            try:
                chunk = source.take(wanted)
            except Exception as error:
                failure, chunk = error, None
            if chunk is None:
                break
            chunks.append(chunk)
            wanted -= chunk.steps
            if chunk.open_ended:
                break
        workers.check_taken(source, sum(chunk.steps for chunk in chunks))
        if chunks:
            yield _Execution(chunks)
        elif failure is None:
            return
    raise failure


def _run(function: Any, execution: _Execution, source: Source) -> tuple[int, dict[str, Any]]:
    done, logs = 0, {}
    function.fresh = False
    for chunk in execution.chunks:
        ran, new = function(chunk)
        done += ran
        if ran:
            logs = new
        if ran < chunk.steps:
            source.drawn(ran)
            break
    return done, logs


@async_fit.names_lost_servers
def evaluate(model: Any, source: Source, verbose: Any, callbacks: Any) -> dict[str, Any]:
    """The logs of one pass over `source`. Context: host."""
    model.build_for(source.spec, source.batch_rows, training=False)
    callbacks = _callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
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
    for chunks in _executions(source, lambda: workers.settle(pace.next()), workers):
        callbacks.on_test_batch_begin(pace.step)
        done, new = _run(model.test_function, chunks, source)
        if done:
            logs = pythonify_logs(new)
            pace.done(done)
            callbacks.on_test_batch_end(pace.last_batch(done), logs)
        if (model.stop_evaluating and not workers.several) or not chunks.all_steps_ran(done):
            break
    callbacks.on_test_end(logs)
    return logs


@async_fit.names_lost_servers
def predict(model: Any, source: Source, verbose: Any, callbacks: Any) -> Any:
    """The outputs for one pass over `source`, in order. Context: host."""
    callbacks = _callback_list(model, callbacks, verbose, 1, source.steps_per_epoch)
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
    for chunks in _executions(source, lambda: workers.settle(pace.next()), workers):
        callbacks.on_predict_batch_begin(pace.step)
        done, outputs = 0, []
        for chunk in chunks.chunks:
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


@async_fit.names_lost_servers
def on_batch(
    model: Any, training: bool, x: Any, y: Any, sample_weight: Any, class_weight: Any, return_dict: bool
) -> Any:
    """One step on one global batch. Context: host."""
    chunk = _whole_batch(model, x, y, sample_weight, class_weight)
    model.build_for(batch_spec(chunk.inputs), chunk.rows, training)
    model.reset_metrics()
    function = model.make_train_function() if training else model.make_test_function()
    _, logs = function(chunk)
    if training:
        check_progress(model, chunk, 1)
    logs = pythonify_logs(logs)
    return logs if return_dict else model._flatten_metrics_in_order(logs)


@async_fit.names_lost_servers
def predict_on_batch(model: Any, x: Any) -> Any:
    """The outputs for one global batch. Context: host."""
    chunk = _whole_batch(model, x, None, None, None)
    model.build_for_prediction(batch_spec(chunk.inputs))
    _, outputs = model.make_predict_function()(chunk)
    return keras.tree.map_structure(convert_to_np_if_not_ragged, outputs[0])


def _whole_batch(model: Any, x: Any, y: Any, sample_weight: Any, class_weight: Any) -> Chunk:
    if class_weight is not None and sample_weight is not None:
        raise ValueError(
            "Arguments `sample_weight` and `class_weight` cannot be specified at the same time. Received: "
            f"sample_weight={sample_weight}, class_weight={class_weight}"
        )
    source = make_source(
        x,
        y,
        sample_weight,
        batch_size=2**31 - 1,
        class_weight=class_weight,
        strategy=model.distribute_strategy,
    )
    source.begin_epoch(0)
    chunk = source.take(1)
    if chunk is None:
        raise ValueError("The batch has no rows: give at least one.")
    batch = chunk.reader(chunk.inputs, tf.constant(0))
    source.close()
    return Chunk(batch, 1, None, _same)


def _same(inputs: Any, i: Any) -> Any:
    return inputs


def after_reset(model: Any) -> None:
    """Completes a reset of the metrics under several replicas."""
    if model._distribute_strategy is not None:
        give_first_replica_the_state(model.metrics, model._distribute_strategy)
