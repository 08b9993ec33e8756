"""The callbacks and the state with which a `fit` begins."""

import contextlib
import warnings

import keras

from ...callbacks.monitors import check_monitors, may_add_logs
from ...callbacks.output_paths import check_launched_alone, check_output_paths, only_chief_writes
from ...distribute.workers.agreement import spans_workers
from ...distribute.workers.cluster import is_chief
from ...state.trained_model import FitState, TrainedModel
from ..inputs import Source
from .callback_list import callback_list, log_names
from .checks.determinism import say_what_determinism_costs
from .fit_inputs import FitArguments
from .forward_pass import why_no_pass


def begin_fit(
    model: TrainedModel,
    a: FitArguments,
    source: Source,
    validation: Source | None,
    at_exit: contextlib.ExitStack,
) -> tuple[keras.callbacks.CallbackList, FitState]:
    """Return the callbacks of this fit and its state, which are cleaned up at its end."""
    at_exit.callback(setattr, model, "fit_state", None)
    given = a.callbacks.callbacks if isinstance(a.callbacks, keras.callbacks.CallbackList) else a.callbacks
    given = keras.tree.flatten(given or [])
    check_launched_alone(given, model.distribute_strategy)
    logs = log_names(model, validation is not None)
    if logs is not None:
        check_monitors(given, logs)
    chief = is_chief()
    if chief:
        check_output_paths(given, None if any(map(may_add_logs, given)) else logs)
        if a.verbose != 0:
            say_what_determinism_costs(model, a.x)
    spool = at_exit.enter_context(only_chief_writes(given, chief))
    callbacks = callback_list(
        model, a.callbacks, a.verbose, a.epochs, source.steps_per_epoch, add_history=True
    )
    if source.home and a.verbose and chief:
        print(source.home)
    model.fit_state = FitState(
        epoch=a.initial_epoch,
        first_epoch=a.initial_epoch,
        epochs=_cap(a.epochs),
        steps_per_epoch=source.steps_per_epoch,
        source=source,
        validation=validation,
        callbacks=callbacks.callbacks,
        chief=chief,
        spool=spool,
        settles_exit=spans_workers(model.distribute_strategy),
        why_no_pass=why_no_pass(model, source),
    )
    for callback in reversed(callbacks.callbacks):
        if hasattr(callback, "on_fit_exit"):
            at_exit.callback(callback.on_fit_exit)
    return callbacks, model.fit_state


def _cap(epochs: int) -> int:
    most = keras.config.max_epochs()
    if most and most < epochs:
        warnings.warn(f"Limiting epochs to {most}", stacklevel=4)
        return most
    return epochs
