"""The loop of asynchronous training: executions are handed out, their results come back, callbacks are called.

Called by `fit_loop` where the model lives on parameter servers; epochs, validation and callbacks are the same there.
How long executions are is in `async_pace.py`; `evaluate` and `predict` are in `async_evaluate.py`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any

from ... import mixed_precision
from ...callbacks.fit_state import FitState
from ...compat.training import pythonify_logs
from ...distribute.parameter_servers.strategy import (
    mode_of,
    on_parameter_servers,
    pool_of,
)
from ..step.variable_placement import optimizers_of
from .execution_length import AsyncPace, next_stop, wants_each_step
from .input_pieces import Pieces
from .synchronous import SynchronousSteps, train_one_step
from .worker_steps import WorkerSteps


def is_asynchronous(model: Any) -> bool:
    """Whether the model's variables live on parameter servers."""
    return on_parameter_servers(model.distribute_strategy)


def names_lost_servers(loop: Callable[..., Any]) -> Callable[..., Any]:
    """Says which parameter server is gone or hangs, where `loop(model, ...)` fails because one does."""

    @functools.wraps(loop)
    def wrapped(model: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_asynchronous(model):
            return loop(model, *args, **kwargs)
        from .runner import ParameterServerRunner

        with ParameterServerRunner().watching(model):
            return loop(model, *args, **kwargs)

    return wrapped


def train_steps(model: Any, state: FitState, callbacks: Any) -> dict[str, Any]:
    """The training steps of the epoch, from where `state` stands; returns the logs after the last. Context: host."""
    steps: WorkerSteps = model.train_function
    if isinstance(steps, SynchronousSteps):
        return _train_in_sync(model, state, callbacks, steps)
    fixed = None if model._auto_steps else model.steps_per_execution
    pool, mode = pool_of(model.distribute_strategy), mode_of(model.distribute_strategy)
    pieces = Pieces(state.source)
    most = 1 if fixed is None and wants_each_step(callbacks.callbacks) else mode.max_staleness
    pace = AsyncPace(fixed, pool.num_workers, state.steps_per_epoch, most)
    first = pieces.next(pace.next(state.step, next_stop(callbacks.callbacks, state.step)))
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
            bound = next_stop(callbacks.callbacks, state.step)
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
            if next_stop(callbacks.callbacks, state.step - 1) == 1:
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
