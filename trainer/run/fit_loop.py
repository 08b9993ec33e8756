"""The loop of `fit`: epochs, executions and callbacks, in the order in which they happen.

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

from ...callbacks.chief_files import only_chief_writes
from ...callbacks.fast_dev_run import one_batch_of_everything
from ...callbacks.fit_state import FitState
from ...callbacks.wake import steps_to_wake
from ...compat.training import epoch_to_begin_with, evaluates_after, pythonify_logs, unpack_x_y_sample_weight
from ...distribute.workers.agreement import spans_workers
from ...distribute.workers.cluster import is_chief
from .. import checks
from ..inputs import Source, make_source, split_for_validation
from ..inputs.make_source import kind_of
from ..parameter_servers import training as async_fit
from ..pipeline.step import names_lost_stages
from . import xla_choice as tuner
from .callback_list import callback_list
from .evaluation_loops import evaluate
from .execution_length import Pace
from .executions import executions, run
from .overflow import check_progress
from .worker_settlement import Workers, check_same_fit, same_random


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


@names_lost_stages
@async_fit.names_lost_servers
def fit(model: Any, a: FitArguments) -> keras.callbacks.History:
    """Trains for `epochs` epochs. Context: host."""
    checks.check_fit(a)
    if a.fast_dev_run:
        a.callbacks, a.validation_freq = one_batch_of_everything(a.callbacks), 1
    source, validation = _sources(model, a)
    with contextlib.ExitStack() as at_exit:  # all of it happens, whatever fails
        at_exit.callback(source.close)
        if validation is not None:
            at_exit.callback(validation.close)
        at_exit.callback(setattr, model, "fit_state", None)
        model.build_for(source.spec, source.batch_rows)
        check_same_fit(model, source, validation, {"epochs": a.epochs, "initial_epoch": a.initial_epoch})
        given = (
            a.callbacks.callbacks if isinstance(a.callbacks, keras.callbacks.CallbackList) else a.callbacks
        )
        at_exit.enter_context(only_chief_writes(keras.tree.flatten(given or []), is_chief()))
        callbacks = callback_list(
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
        for callback in reversed(state.callbacks):
            if hasattr(callback, "on_fit_exit"):
                at_exit.callback(callback.on_fit_exit)
        model.fit_state = state
        return _train(model, a, state, callbacks, validation)


def _train(
    model: Any, a: FitArguments, state: FitState, callbacks: Any, validation: Source | None
) -> keras.callbacks.History:
    """All epochs, with what comes before the first and after the last."""
    model.stop_training = False
    model.make_train_function()
    callbacks.on_train_begin()
    # A callback of Keras may set the first epoch in on_train_begin.
    state.epoch = epoch_to_begin_with(model) or state.epoch
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
    if validation is not None and evaluates_after(model, epoch, a.validation_freq):
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
    for chunks in executions(state.source, lambda: workers.settle(pace.next()), workers):
        lap("input")
        state.execution = chunks
        callbacks.on_train_batch_begin(state.step)
        lap("callbacks")
        done, new = run(model.train_function, chunks, state.source, state.step)
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
