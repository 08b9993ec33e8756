"""The callbacks and the state with which a `fit` begins, and what deterministic operations cost it."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf

from ...callbacks.backup.backup_and_restore import BackupAndRestore
from ...callbacks.callback import hook
from ...callbacks.monitors import check_monitors, may_add_logs
from ...callbacks.output_paths import check_launched_alone, check_output_paths, only_chief_writes
from ...compat.tensorflow_graphs.graphs import operations_are_deterministic
from ...compat.tensorflow_private.pipelines import in_any_order, transformations
from ...distribute.workers.agreement import spans_workers
from ...distribute.workers.cluster import is_chief
from ...state.trained_model import FitState, TrainedModel
from ..inputs import Source
from .callback_list import callback_list, log_names
from .evaluation import why_no_pass
from .fit_inputs import FitArguments


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
            say_what_determinism_costs(model, a.data.x)
    spool = at_exit.enter_context(only_chief_writes(given, chief))
    params = {"verbose": a.verbose, "epochs": a.epochs, "steps": source.steps_per_epoch}
    callbacks = callback_list(model, a.callbacks, add_history=True, **params)
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
        if on_fit_exit := hook(callback, "on_fit_exit"):
            at_exit.callback(on_fit_exit)
    return callbacks, model.fit_state


@contextlib.contextmanager
def say_interrupted(state: FitState) -> Iterator[None]:
    """Print to stderr what Ctrl-C ends, where no callback has saved for it."""
    try:
        yield
    except KeyboardInterrupt:
        if state.chief and state.save_and_exit is None:
            where = f"unisono: SIGINT: ended at epoch {state.epoch + 1}, step {state.step}"
            saves = any(isinstance(each, BackupAndRestore) for each in state.callbacks)
            lost = (
                "its backups stay as they were"
                if saves
                else "nothing was saved, as no BackupAndRestore was passed"
            )
            print(f"{where}; {lost}.", file=sys.stderr, flush=True)
        raise


def _cap(epochs: int) -> int:
    most = keras.config.max_epochs()
    if most and most < epochs:
        warnings.warn(f"Limiting epochs to {most}", stacklevel=4)
        return most
    return epochs


_said: set[str] = set()


def say_what_determinism_costs(model: TrainedModel, x: Any) -> None:
    """Print one line, once for each cost, if operations are deterministic; `x` is the user's. Context: the chief."""
    if not operations_are_deterministic():
        return
    line = f"Deterministic operations (enable_op_determinism) make this fit slower: {'; '.join(_costs(model, x))}."
    if line not in _said:
        _said.add(line)
        print(line, flush=True)


def _costs(model: TrainedModel, x: Any) -> Iterator[str]:
    untried = ", and they are not chosen by speed" if tf.config.list_logical_devices("GPU") else ""
    yield f"some kernels are slower, such as the gradients of convolutions and scatters{untried}"
    if model._auto_jit and not model.run_eagerly:
        yield "steps run in the plain graph (`jit_compile=True` selects XLA, which may be faster)"
    if not isinstance(x, tf.data.Dataset):
        return
    for step in transformations(x):
        if step.in_parallel and (step.keeps_state or step.draws or step.tokens):
            what = "calls Python" if step.tokens else "draws random numbers or writes a variable"
            yield (
                f"the {step.name.strip('_')} of the input {what}, so it is sequential: draw with tf.random.stateless_* "
                "functions to run it in parallel"
            )
    if in_any_order(x):
        yield "the input is read in order, because deterministic=False is ignored"
