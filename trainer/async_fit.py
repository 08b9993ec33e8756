"""The loops of asynchronous training: executions are handed out, their results come back, callbacks are called.

Called by `fit_loop` where the model lives on parameter servers; epochs, validation and callbacks are the same there.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from .. import mixed_precision
from ..callbacks.fit_state import FitState
from ..callbacks.wake import steps_to_wake
from ..distribute.parameter_server import mode_of, on_parameter_servers, pool_of
from .async_execution import WorkerSteps
from .async_inputs import Pieces
from .async_synchronous import SynchronousSteps, train_one_step
from .homes import optimizers_of
from .keras_internals import pythonify_logs

_TARGET_SECONDS = 0.1


def is_asynchronous(model: Any) -> bool:
    """Whether the model's variables live on parameter servers."""
    return on_parameter_servers(model.distribute_strategy)


def names_lost_servers(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Says which parameter server is gone, where `loop(model, ...)` fails because one is."""

    @functools.wraps(loop)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return loop(model, *args, **kwargs)
        except tf.errors.OpError as error:
            if is_asynchronous(model):
                pool_of(model.distribute_strategy).check_servers(error)
            raise
        finally:
            if is_asynchronous(model) and model.fit_state is None:
                _forget_inputs(model)

    return wrapped


def _forget_inputs(model: Any) -> None:
    """Gives back the memory that inputs take on the workers."""
    for function in (model.train_function, model.test_function, model.predict_function):
        if function is not None:
            function.memory.clear()


def train_steps(model: Any, state: FitState, callbacks: Any) -> dict[str, Any]:
    """The training steps of the epoch, from where `state` stands; returns the logs after the last. Context: host."""
    steps: WorkerSteps = model.train_function
    if isinstance(steps, SynchronousSteps):
        return _train_in_sync(model, state, callbacks, steps)
    fixed = None if model._auto_steps else model.steps_per_execution
    pool, mode = pool_of(model.distribute_strategy), mode_of(model.distribute_strategy)
    pieces = Pieces(state.source)
    most = 1 if fixed is None and _wants_each_step(callbacks.callbacks) else mode.max_staleness
    pace = _Pace(fixed, pool.num_workers, state.steps_per_epoch, most)
    first = pieces.next(1 if fixed is None else fixed)
    if first is None:
        return _no_batch(state)
    steps.prepare(first, fixed)
    totals = steps.totals()
    count = _UpdateCount(model)
    logs: dict[str, Any] = {}
    pending = [first]
    with pool.phase(steps.run, steps.memory.forget, mode.max_staleness) as phase:
        scheduled = state.step
        while True:
            bound = _next_stop(callbacks.callbacks, state.step)
            stop = None if bound is None else state.step + bound
            while phase.under_way < steps.lines and not model.stop_training:
                left = None if stop is None else stop - scheduled
                if left is not None and left <= 0:
                    break
                piece = (
                    pending.pop() if pending else pieces.next(pace.next(scheduled, left, steps.most_steps))
                )
                if piece is None:
                    break
                steps.prepare(piece, fixed)
                scheduled += piece.steps
                callbacks.on_train_batch_begin(scheduled - piece.steps)
                phase.put(steps.numbered(piece))
            if not phase.under_way:
                break
            began = time.perf_counter()
            piece, rows = phase.get()
            steps.done(piece)
            totals.add(rows)
            state.step += piece.steps
            pace.done(piece.steps, began)
            if not phase.under_way and stop is not None and state.step >= stop:
                count.correct(totals, phase.losses)
                totals.commit()
            _check_progress(model)
            logs = pythonify_logs({**totals.logs(), **model.optimizer_logs()})
            state.step_logs = logs
            callbacks.on_train_batch_end(state.step - 1, logs)
    count.correct(totals, phase.losses)
    totals.commit()
    _learn_length(model, state)
    return logs


def _no_batch(state: FitState) -> dict[str, Any]:
    """The logs of an epoch, or of the rest of one, without batches."""
    if state.step == 0 and state.epoch == 0:
        raise ValueError("The input gave no batch: give a dataset or generator that has at least one.")
    return state.step_logs


def _learn_length(model: Any, state: FitState) -> None:
    if state.steps_per_epoch is None and not model.stop_training:
        state.steps_per_epoch = state.step


def _train_in_sync(model: Any, state: FitState, callbacks: Any, steps: SynchronousSteps) -> dict[str, Any]:
    pool, mode = pool_of(model.distribute_strategy), mode_of(model.distribute_strategy)
    pieces = Pieces(state.source)
    piece = pieces.next(1)
    if piece is None:
        return _no_batch(state)
    steps.prepare(piece, 1)
    totals = steps.totals()
    logs: dict[str, Any] = {}
    with pool.phase(steps.run, steps.memory.forget) as phase:
        while piece is not None and not model.stop_training:
            callbacks.on_train_batch_begin(state.step)
            steps.prepare(piece, 1)
            rows = train_one_step(steps, phase, piece, state.step, mode.backup_workers or 0)
            totals.add(rows)
            state.step += 1
            if _next_stop(callbacks.callbacks, state.step - 1) == 1:
                totals.commit()
            _check_progress(model)
            logs = pythonify_logs({**totals.logs(), **model.optimizer_logs()})
            state.step_logs = logs
            callbacks.on_train_batch_end(state.step - 1, logs)
            piece = pieces.next(1)
    totals.commit()
    _learn_length(model, state)
    return logs


def _check_progress(model: Any) -> None:
    """Stops training in mixed precision that only skips steps."""
    unknown = "Which layer is to blame is not looked for on parameter servers: run one step on one device"
    mixed_precision.check_progress(optimizers_of(model), lambda loss_scale: unknown)


def _next_stop(callbacks: list[Any], step: int) -> int | None:
    """Steps until a callback wants to find all of them done: one that saves."""
    wanted = [
        wake
        for callback in callbacks
        if _saves(callback) and (wake := steps_to_wake(callback, step)) is not None
    ]
    return min(wanted, default=None)


def _saves(callback: Any) -> bool:
    return hasattr(callback, "steps_to_wake") or isinstance(callback, keras.callbacks.ModelCheckpoint)


def _wants_each_step(callbacks: list[Any]) -> bool:
    """Whether a callback has a hook for every step."""
    return any(not _saves(callback) and steps_to_wake(callback, 0) == 1 for callback in callbacks)


class _Pace:
    """How many steps the next execution takes: about 0.1 s, and few near the end so that no worker is waited for."""

    def __init__(self, fixed: int | None, workers: int, epoch_steps: int | None, most: int | None) -> None:
        self._fixed, self._workers, self._epoch_steps, self._most = fixed, workers, epoch_steps, most
        self._steps, self._results, self._last = 1.0, 0, time.perf_counter()

    def next(self, scheduled: int, left: int | None, most: int) -> int:
        """The steps of the execution after `scheduled` steps of the epoch, of which at most `left` may follow."""
        steps = self._fixed if self._fixed is not None else int(self._steps)
        if self._fixed is None and self._epoch_steps is not None and self._workers > 1:
            steps = min(steps, max(1, (self._epoch_steps - scheduled) // (2 * self._workers)))
        for bound in (left, most, self._most):
            steps = steps if bound is None else min(steps, bound)
        return max(1, steps)

    def done(self, steps: int, began: float) -> None:
        """Notes a result: results should come every `0.1 s / workers`."""
        now = time.perf_counter()
        seconds, self._last = now - self._last, now
        self._results += 1
        if self._results <= self._workers:  # these have compiled, or waited for the others that did
            return
        wanted = steps * _TARGET_SECONDS / self._workers / max(seconds, 1e-6)
        self._steps = max(1.0, min(wanted, 2 * self._steps, 512.0))


class _UpdateCount:
    """The optimizer's count of updates, made right after a worker was lost while it was counting."""

    def __init__(self, model: Any) -> None:
        optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
        known = optimizer is not None and not model.has_own_train_step()
        self._variable: Any = getattr(optimizer, "_iterations", None) if known else None
        self._start = int(self._variable.numpy()) if self._variable is not None else 0

    def correct(self, totals: Any, losses: int) -> None:
        """Sets the count to the steps that were applied, if a worker was lost. Context: host, no step under way."""
        if losses and self._variable is not None:
            self._variable.assign(self._start + totals.applied)


def test_steps(model: Any, source: Any, callbacks: Any) -> dict[str, Any]:
    """One pass over `source` for `evaluate`: every row is counted once, in order, whatever happens to workers."""
    function: WorkerSteps = model.test_function
    fixed = None if model._auto_steps else model.steps_per_execution
    pool = pool_of(model.distribute_strategy)
    pieces = Pieces(source)
    pace = _Pace(fixed, pool.num_workers, source.steps_per_epoch, None)
    first = pieces.next(1 if fixed is None else fixed)
    if first is None:
        return {}
    function.prepare(first, fixed)
    totals = function.totals()
    logs: dict[str, Any] = {}
    done = 0
    in_order = _in_order(
        pool.phase(function.run, function.memory.forget),
        pieces,
        first,
        pace,
        function,
        lambda piece: function.prepare(piece, fixed),
        lambda: model.stop_evaluating,
        callbacks.on_test_batch_begin,
    )
    for piece, rows in in_order:
        totals.add(rows)
        done += piece.steps
        logs = pythonify_logs(totals.logs())
        callbacks.on_test_batch_end(done - 1, logs)
    totals.commit()
    return logs


def predict_steps(model: Any, source: Any, callbacks: Any, join: Callable[[list[Any]], Any]) -> list[Any]:
    """The outputs of every batch of `source`, in order."""
    function = model.predict_function
    fixed = None if getattr(model, "_auto_steps", True) else model.steps_per_execution
    pool = pool_of(model.distribute_strategy)
    pieces = Pieces(source)
    pace = _Pace(fixed, pool.num_workers, source.steps_per_epoch, None)
    first = pieces.next(1 if fixed is None else fixed)
    if first is None:
        return []
    function.prepare(first)
    collected: list[Any] = []
    in_order = _in_order(
        pool.phase(function.run, function.memory.forget),
        pieces,
        first,
        pace,
        function,
        function.prepare,
        lambda: model.stop_predicting,
        callbacks.on_predict_batch_begin,
    )
    for _, outputs in in_order:
        collected.extend(outputs)
        callbacks.on_predict_batch_end(len(collected) - 1, {"outputs": join(outputs)})
    return collected


def _in_order(
    entering: Any,
    pieces: Pieces,
    first: Any,
    pace: _Pace,
    function: Any,
    prepare: Any,
    stopped: Any,
    begin: Any,
) -> Iterator[tuple[Any, Any]]:
    """(piece, result) pairs in the order of the input, each as soon as those before it are there."""
    arrived: dict[int, tuple[Any, Any]] = {}
    scheduled, next_number = 0, None
    piece = first
    with entering as phase:
        while True:
            while piece is not None and phase.under_way + len(arrived) < function.lines and not stopped():
                prepare(piece)
                numbered = function.numbered(piece)
                next_number = numbered.number if next_number is None else next_number
                begin(scheduled)
                scheduled += piece.steps
                phase.put(numbered)
                piece = pieces.next(pace.next(scheduled, None, 512))
            if not phase.under_way:
                return
            began = time.perf_counter()
            done, result = phase.get()
            function.done(done)
            pace.done(done.steps, began)
            arrived[done.number] = done, result
            while next_number in arrived:
                yield arrived.pop(next_number)
                next_number += 1
