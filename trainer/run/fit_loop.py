"""The loop of `fit`: epochs, compiled calls and callbacks, in order.

It only schedules: `FitState` has the position, `CallLength` the length of a call, the source the data, the runner the steps.
"""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import keras

from ...callbacks.fast_dev_run import one_batch_of_everything
from ...callbacks.monitors import check_monitors, may_add_logs
from ...callbacks.output_paths import check_launched_alone, check_output_paths, only_chief_writes
from ...callbacks.trained_model import FitState, TrainedModel
from ...compat.keras_private.training import epoch_to_begin_with, evaluates_after, pythonify_logs
from ...distribute.hardware.devices import wait_for_accelerators
from ...distribute.workers.agreement import spans_workers
from ...distribute.workers.cluster import is_chief
from ...distribute.workers.records import reporting_position
from .. import checks
from ..inputs import Source, make_source
from ..inputs.checks import named
from ..inputs.sources.derived_inputs import copied_input, first_batches
from .build import creates_variables_late
from .callback_list import callback_list, log_names
from .checks.argument_errors import check_labels, check_validation, explained
from .checks.determinism import say_what_determinism_costs
from .checks.out_of_memory import with_advice
from .checks.overflow import check_progress
from .evaluation import evaluate
from .fit_inputs import FitArguments, draw_seed, sources
from .forward_pass import forward_pass, why_no_pass
from .logs.step_logs import StepLogs
from .loops.compiled_calls import CallLength, compiled_calls
from .runner import Runner
from .slow_steps import SlowSteps
from .untouched import untouched
from .worker_settlement import Workers, check_same_begin, check_same_fit


def fit(model: TrainedModel, a: FitArguments, runner: Runner) -> keras.callbacks.History:
    """Trains for `epochs` epochs, with steps that `runner` runs. Context: host."""
    checks.check_fit(a)
    if a.fast_dev_run:
        a.callbacks, a.validation_freq = one_batch_of_everything(a.callbacks), 1
    with runner.watching(model), contextlib.ExitStack() as at_exit:  # all of it runs, even after errors
        check_same_begin(model)
        source, validation = sources(model, a)
        at_exit.callback(source.close)
        if validation is not None:
            at_exit.callback(validation.close)
        if a.callbacks or not creates_variables_late(
            model
        ):  # a callback may restore the state of an optimizer
            runner.build(model, source.spec, source.batch_size)
        if a.shuffle:
            draw_seed()  # so that the next fit has another order
        check_labels(model, source, "train_step")
        if validation is not None:
            check_validation(model, validation.spec, validation.batch_size, source.spec)
            with named("validation_data"):
                check_labels(model, validation, "test_step")
        check_same_fit(model, source, validation, {"epochs": a.epochs, "initial_epoch": a.initial_epoch})
        callbacks, state = _begin(model, a, source, validation, at_exit)
        at_exit.enter_context(reporting_position(lambda: f"epoch {state.epoch + 1}, step {state.step}"))
        model.stop_training = False
        made = runner.make_function(model, "train")
        callbacks.on_train_begin()
        # A callback of Keras may set it in on_train_begin.
        state.epoch = epoch_to_begin_with(model) or state.epoch
        state.function = None if model.train_function is made else made
        runner.begin_steps(model, state)
        if (state.epoch, state.step, state.epoch_logs) == (a.initial_epoch, 0, {}):  # else it is resumed
            _try_validation(model, a, runner)
        logs = None
        workers = Workers(model, "stop_training")
        while state.epoch < state.epochs and not workers.stopped():
            logs = _epoch(model, a, state, callbacks, validation, runner) or logs
        if isinstance(model.optimizer, keras.optimizers.Optimizer) and a.epochs > 0:
            with model._strategy_scope():
                model.optimizer.finalize_variable_values(model.trainable_weights)
        callbacks.on_train_end(logs=logs)
    return model.history


def _begin(
    model: TrainedModel,
    a: FitArguments,
    source: Source,
    validation: Source | None,
    at_exit: contextlib.ExitStack,
) -> tuple[keras.callbacks.CallbackList, FitState]:
    """The callbacks of this fit and its schedule, and the cleanup of both at its end."""
    at_exit.callback(setattr, model, "fit_state", None)
    given = a.callbacks.callbacks if isinstance(a.callbacks, keras.callbacks.CallbackList) else a.callbacks
    given = keras.tree.flatten(given or [])
    check_launched_alone(given, model.distribute_strategy)
    logs = log_names(model, validation is not None)
    if logs is not None:
        check_monitors(given, logs)
    if is_chief():
        check_output_paths(given, None if any(map(may_add_logs, given)) else logs)
        if a.verbose != 0:
            say_what_determinism_costs(model, a.x)
    at_exit.enter_context(only_chief_writes(given, is_chief()))
    callbacks = callback_list(
        model, a.callbacks, a.verbose, a.epochs, source.steps_per_epoch, add_history=True
    )
    if source.home and a.verbose and is_chief():
        print(source.home)
    model.fit_state = FitState(
        epoch=a.initial_epoch,
        first_epoch=a.initial_epoch,
        epochs=_cap(a.epochs),
        steps_per_epoch=source.steps_per_epoch,
        source=source,
        validation=validation,
        callbacks=callbacks.callbacks,
        chief=is_chief(),
        settles_exit=spans_workers(model.distribute_strategy),
        forward_pass=lambda: forward_pass(model),
        why_no_pass=why_no_pass(model, source),
    )
    for callback in reversed(callbacks.callbacks):
        if hasattr(callback, "on_fit_exit"):
            at_exit.callback(callback.on_fit_exit)
    return callbacks, model.fit_state


def _try_validation(model: TrainedModel, a: FitArguments, runner: Runner) -> None:
    """Evaluates a few batches, so that an error in the validation appears before the first epoch. No callback is called."""
    if a.validation_data is None or not a.validation_sanity_steps:
        return
    x, y, sample_weight = a.validation_data
    with untouched(model, (x, y, sample_weight)):
        steps = a.validation_sanity_steps
        copy = copied_input(x, f"`validation_sanity_steps` ({steps})")
        x, y, sample_weight, batch_size = first_batches(
            copy, y, sample_weight, steps, a.validation_batch_size, a.validation_steps
        )
        source = make_source(
            x,
            y,
            sample_weight,
            batch_size=batch_size,
            strategy=model.distribute_strategy,
            custom_step=model._overrides_step("test_step"),
        )
        with contextlib.closing(source):
            evaluate(model, source, 0, None, runner)


def _cap(epochs: int) -> int:
    most = keras.config.max_epochs()
    if most and most < epochs:
        warnings.warn(f"Limiting epochs to {most}", stacklevel=4)
        return most
    return epochs


def _epoch(
    model: TrainedModel,
    a: FitArguments,
    state: FitState,
    callbacks: keras.callbacks.CallbackList,
    validation: Source | None,
    runner: Runner,
) -> dict[str, Any]:
    """One epoch, from the step of `state` on."""
    epoch = state.epoch
    if state.step == 0 and not state.epoch_logs:  # else it is resumed
        model.reset_metrics()
        state.source.begin_epoch(epoch)
    callbacks.on_epoch_begin(epoch)
    if state.after_epoch_begin is not None:
        state.after_epoch_begin()
        state.after_epoch_begin = None
    logs, started = state.epoch_logs, state.step
    if not logs and model.stop_training:  # a resumed run may have stopped after its last step
        logs = state.step_logs
    elif not logs:
        runner.begin_steps(model, state)
        logs = runner.train_steps(model, state, callbacks)
        if state.steps_per_epoch is None and not model.stop_training:
            state.steps_per_epoch = state.step
        if state.step == started == 0 and epoch == state.first_epoch:
            raise ValueError("The input gave no batch: give a dataset or generator that has at least one.")
    if not logs:  # the source has warned that its data ran out
        model.stop_training = True
        return {}
    state.epoch_logs = dict(logs)
    if validation is not None and evaluates_after(model, epoch, a.validation_freq):
        state.times.lap("other")
        val_logs = evaluate(model, validation, a.verbose, callbacks, runner, _validations(model, a, state))
        state.times.lap("validation")
        logs = {**logs, **{f"val_{name}": value for name, value in val_logs.items()}}
    state.epoch_logs = {}
    callbacks.on_epoch_end(epoch, logs)
    state.times.lap("callbacks")
    state.epoch, state.step, state.step_logs = epoch + 1, 0, {}
    return logs


def _validations(model: TrainedModel, a: FitArguments, state: FitState) -> int:
    """The number of validations in all; an early stop may come, so none is counted after a hundred epochs."""
    epochs = range(state.first_epoch, min(state.epochs, state.first_epoch + 100))
    return sum(evaluates_after(model, epoch, a.validation_freq) for epoch in epochs)


class LocalRunner(Runner):
    """Trains in this process; see `Runner`."""

    def train_steps(
        self, model: TrainedModel, state: FitState, callbacks: keras.callbacks.CallbackList
    ) -> dict[str, Any]:
        """The training steps of the epoch in this process; returns the logs after the last, nothing if there was no data."""
        function, lap = model.train_function, state.times.lap
        length = CallLength(model._fixed_steps, callbacks.callbacks, step=state.step, function=function)
        logs = state.step_logs
        lap("other")
        workers = Workers(model, "stop_training")
        step_logs = StepLogs(callbacks.callbacks, state, function, model._fixed_steps)
        state.slow_steps = watched = state.slow_steps or SlowSteps(model, state)
        watched.begin(function)
        for call in compiled_calls(state.source, length.next, workers):
            lap("input")
            state.compiled_call = call
            callbacks.on_train_batch_begin(state.step)
            lap("callbacks")
            samples = state.source.batch_size
            with step_logs.compiled_call(), with_advice(model, function, samples):
                with explained(model, state.source.spec, samples, first=state.step == 0):
                    done, new = function(call, state.step)
            step_logs.report_to_source(call, done)
            if done:
                logs = pythonify_logs({**new, **model._optimizer_logs()})
                step_logs.ended(done, logs)
                state.step_logs = logs
                check_progress(model, call.chunks[-1], done)
                wait_for_accelerators()  # the logs are ready before the last update is
                length.done(done)
                lap("compute")
                callbacks.on_train_batch_end(length.last_batch(done), logs)
                lap("callbacks")
                watched.end_call(call, done)
            ended = done < call.steps and (done or state.source.position.is_over())
            if ended or (model.stop_training and not workers.several):
                break
            if model.train_function is not function:
                self.begin_steps(model, state)
                return self.train_steps(model, state, callbacks) or logs
        workers.check_read(state.source)
        return logs
