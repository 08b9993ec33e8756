"""The state of a running `fit`: its position, and the requests of callbacks to the loop."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from ..distribute.workers.cluster import num_workers


class Times:
    """A stopwatch with named laps. The loop calls `lap` after each part of its work; callbacks read `seconds`.

    Args:
        clock: () -> float; seconds.

    Attributes:
        seconds: dict from the name of a part to the seconds spent in it so far. The loop's parts are "input" (waiting for
            batches), "compute" (the compiled function, until its logs are numbers), "callbacks", "validation" and
            "other" (building, resetting metrics, the beginning of an epoch).

    >>> now = iter([0.0, 2.0, 5.0, 6.0])
    >>> times = Times(clock=lambda: next(now))
    >>> times.lap("input"); times.lap("compute"); times.lap("input")
    >>> times.seconds
    {'input': 3.0, 'compute': 3.0}
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, part: str) -> None:
        """Counts the time since the last lap as `part`."""
        now = self._clock()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now


@dataclasses.dataclass
class FitState:
    """The position of one `fit`. The loop owns it and sets it as `model.fit_state` before `on_train_begin`.

    Attributes:
        epoch: int; the current epoch, 0-based.
        first_epoch: int; the epoch at which `fit` was asked to begin.
        step: int; steps of this epoch that are done. Callbacks read it in any hook; `BackupAndRestore` sets `epoch` and
            `step` in `on_train_begin` when it resumes.
        epochs: int; the epoch at which `fit` ends.
        steps_per_epoch: int or None while unknown.
        source: the input (`trainer.inputs.Source`): `state()` and `restore(state)` are its position.
        validation: the input of validation; None without one.
        callbacks: list of the callbacks of this `fit`, History included.
        plan: dict of JSON values; the choices of the loop (steps per compiled call, backend) that a resumed run must repeat.
        step_logs: dict; the logs of the last step of this epoch that is done.
        epoch_logs: dict; the logs of the training steps of this epoch, for a validation that was interrupted.
        after_epoch_begin: callable or None; run once, right after the next `on_epoch_begin`: a resume within an epoch
            uses it to restore what that hook would otherwise have changed.
        chief: bool; whether this process writes files.
        compiled_call: the current or the last compiled call, with `chunks`, each of batches of one size; None before the
            first, and where workers run the steps.
        times: where the time of this `fit` goes.
        save_and_exit: the reason for which training should save and stop at the next step, on all workers.
        asked_to_exit: set by a signal handler: the reason for which this process was asked to.
        settles_exit: bool; whether the loop turns `asked_to_exit` into `save_and_exit`, at the same step on all workers.
        custom_loop: bool; whether a loop that is not our `fit` calls the callback; input and other callbacks are unknown.
    """

    epoch: int = 0
    first_epoch: int = 0
    step: int = 0
    epochs: int = 1
    steps_per_epoch: int | None = None
    source: Any = None
    validation: Any = None
    callbacks: list[Any] = dataclasses.field(default_factory=list)
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    step_logs: dict[str, Any] = dataclasses.field(default_factory=dict)
    epoch_logs: dict[str, Any] = dataclasses.field(default_factory=dict)
    after_epoch_begin: Callable[[], None] | None = None
    chief: bool = True
    compiled_call: Any = None
    times: Times = dataclasses.field(default_factory=Times)
    save_and_exit: str | None = None
    asked_to_exit: str | None = None
    settles_exit: bool = False
    custom_loop: bool = False

    @property
    def samples_per_step(self) -> int | None:
        """The samples of most global batches, where that is known: of all workers, where each reads its own batches."""
        size = getattr(self.source, "batch_size", None) or getattr(self.source, "usual_batch_size", None)
        return size and size * (num_workers() if getattr(self.source, "per_worker", False) else 1)
