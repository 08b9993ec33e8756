"""Passes the logs of every step of a compiled call to callbacks, so that callbacks that only read them do not shorten it."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ....callbacks.call_schedule import (
    ends_at_bad_loss,
    only_reads_logs,
    reads_optimizer,
    replay_steps,
    takes_step_logs,
)
from ....distribute.workers.agreement import gather_numbers
from ....state.trained_model import TrainedModel
from ..loops.step_function import StepFunction
from .step_recorder import MOST_STEPS, StepRecorder


def record_steps(model: TrainedModel, callbacks: Sequence[Any], phase: str) -> None:
    """Record the logs of each step of "train" or "test" that callbacks need, on all workers if one does. Context: host."""
    function: StepFunction = getattr(model, f"{phase}_function")
    fixed, training = model._fixed_steps, phase == "train"
    records = (training and any(map(takes_step_logs, callbacks))) or (
        fixed is None and any(only_reads_logs(each, phase) for each in callbacks)
    )
    halts = training and fixed is None and any(map(ends_at_bad_loss, callbacks))
    follows = training and fixed is None and any(map(reads_optimizer, callbacks))
    wishes = gather_numbers([float(records), float(halts), float(follows)], model.distribute_strategy)
    records, halts, follows = (any(column) for column in zip(*wishes))
    most = max(MOST_STEPS, fixed or 0)
    key = (records, halts, follows, most) if records or halts else None
    known = function.recorders
    if key is not None and key not in known:
        known[key] = StepRecorder(model, training, *key, function.device())
        function.usual_steps = 1  # the logs are known after the first step
    function.recorder = None if key is None else known[key]


class StepLogs:
    """Passes the logs of the steps of one pass to callbacks, one compiled call at a time, of `fixed` steps if set.

    `state` has the number of steps and the logs of the last: a `FitState`, or the pass of an evaluation.
    """

    def __init__(
        self, callbacks: Sequence[Any], state: Any, function: StepFunction, fixed: int | None, phase: str
    ) -> None:
        self._callbacks, self._state, self._phase = callbacks, state, phase
        self._recorder: StepRecorder | None = getattr(function, "recorder", None)
        self._replays = fixed is None and self._recorder is not None and self._recorder.records
        self._takes = phase == "train" and any(map(takes_step_logs, callbacks))

    @contextlib.contextmanager
    def report_failed_call(self, explained: contextlib.AbstractContextManager[None]) -> Iterator[None]:
        """Enter `explained` around a compiled call. If it fails, the callbacks get the steps that were completed before."""
        if self._recorder is not None:
            self._recorder.begin()
        try:
            with explained:
                yield
        except Exception:
            rows, numbers = ({}, {}) if self._recorder is None else self._recorder.rows()
            if rows and len(next(iter(rows.values()))):
                self._pass_on(rows, numbers, all_done=True)
            raise

    def end_call(self, done: int, logs: Mapping[str, Any]) -> None:
        """Note that the compiled call has run `done` steps, with `logs` after the last, and that the next step follows."""
        if not (self._replays or self._takes):
            self._state.step += done
            return
        rows, numbers = ({}, {}) if self._recorder is None else self._recorder.rows()
        if done == 1 or not rows:
            rows, numbers = {name: np.asarray(value)[None] for name, value in logs.items()}, {}
            self._state.step += done - 1
        self._pass_on(rows, numbers)

    def _pass_on(self, rows: Mapping[str, Any], numbers: Mapping[int, Any], all_done: bool = False) -> None:
        replay_steps(
            self._callbacks,
            self._state,
            self._state.step,
            rows,
            numbers,
            replayed=self._replays,
            all_done=all_done,
            phase=self._phase,
        )
