"""When a save is due: at every epoch, every n steps, every so many seconds, or never; and on SIGTERM, SIGUSR1 and Ctrl-C."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import re
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

import tensorflow as tf

from ...distribute.arguments import show, whole_number
from ...distribute.environment import REJOIN
from ...distribute.workers.agreement import gather_numbers
from ...state.trained_model import FitState

NEWCOMER = "newcomer"  # the reason to exit where a machine waits to join an elastic run
_TEXT = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(s|sec|seconds?|m|min|minutes?|h|hours?)\s*$")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclasses.dataclass(frozen=True)
class SaveSchedule:
    """How often to save."""

    unit: str  # "epoch", "steps", "seconds" or "never"
    amount: Any = 1  # steps (an int) or seconds, at least 1

    @classmethod
    def parse(cls, save_freq: Any, or_never: bool = True) -> SaveSchedule:
        """Read "epoch", an int (steps), seconds as a float, str or timedelta, or False if `or_never`."""
        if isinstance(save_freq, str) and save_freq == "epoch":
            return cls("epoch")
        if or_never and save_freq is False:
            return cls("never")
        with contextlib.suppress(ValueError):
            return cls("steps", whole_number("save_freq", save_freq))
        seconds = _seconds(save_freq)
        if seconds is not None and 1 <= seconds < math.inf:
            return cls("seconds", seconds)
        never = ", or False for saves before preemption only" * or_never
        raise ValueError(
            f"Invalid value for argument `save_freq`. Received: save_freq={show(save_freq)}. Use 'epoch', an int of steps, "
            f"seconds (at least 1) as a float, a timedelta or a string such as '30s', '10min'{never}."
        )

    def due(
        self,
        steps: int,
        saved_at_step: int,
        seconds_since_save: float = 0.0,
        strategy: tf.distribute.Strategy | None = None,
    ) -> bool:
        """Return whether to save now, after `steps` steps since the beginning of training.

        Seconds are those of whichever worker of the `strategy` is ahead. All workers ask, at the same steps.
        """
        if self.unit == "steps":
            return steps // self.amount > saved_at_step // self.amount
        if self.unit != "seconds":
            return False
        return max(row[0] for row in gather_numbers([seconds_since_save], strategy)) >= self.amount

    def steps_until_call(self, steps: int) -> int | None:
        """Return the steps from `steps` to the next save; None if steps do not decide."""
        return self.amount - steps % self.amount if self.unit == "steps" else None


def _seconds(save_freq: Any) -> float | None:
    if isinstance(save_freq, datetime.timedelta):
        return save_freq.total_seconds()
    if isinstance(save_freq, float):
        return save_freq
    match = _TEXT.match(save_freq) if isinstance(save_freq, str) else None
    return float(match[1]) * _SECONDS[match[2][0]] if match else None


class InterruptionHandlers:
    """Owns the handlers of SIGTERM, SIGUSR1 and SIGINT from `install` to `remove`.

    Training saves and stops at the next step.
    The first signal sets `fit_state.asked_to_exit`, and with one worker `save_and_exit`. A second one has its usual
    effect at once, and so has one after the loop has ended (`runs` returns False). It does nothing outside the main thread.
    """

    def __init__(self, runs: Callable[[], bool] = lambda: True) -> None:
        self._runs = runs
        self._previous: dict[int, Any] = {}
        self._fit_state: FitState | None = None

    def install(self, fit_state: FitState) -> None:
        """Handle these signals, unless the program ignores them, or has its own handler for SIGUSR1."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.remove()
        self._fit_state = fit_state
        fit_state.asked_to_exit = fit_state.save_and_exit = None  # of an earlier fit
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            handler = signal.getsignal(number)
            if handler is not signal.SIG_IGN and (number != signal.SIGUSR1 or handler is signal.SIG_DFL):
                self._previous[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restore the previous handlers."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._fit_state = None
        for number in list(self._previous):  # one that others have replaced comes back when they restore it
            if signal.getsignal(number) == self._handle:
                handler = self._previous.pop(number)
                signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        fit_state = self._fit_state
        if fit_state is None or fit_state.asked_to_exit is not None or not self._runs():
            self.remove()
            if signal.getsignal(number) == self._handle:  # whose it was before is not known
                default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
                signal.signal(number, default)
            signal.raise_signal(number)
            return
        fit_state.asked_to_exit = signal.Signals(number).name
        if not fit_state.settles_exit:
            fit_state.save_and_exit = fit_state.asked_to_exit


def say_stopped(reason: str, epoch: int, step: int, directory: Any, failed: bool) -> None:
    """Print, to stderr, what ended training and from where the same command resumes; `epoch` counts from 0."""
    if reason != NEWCOMER:  # of which the launcher says that all start again
        end = "the store did not take its backup, so" if failed else f"it was saved in {directory}:"
        text = f"unisono: {reason}: training stopped at epoch {epoch + 1}, step {step}; {end} the same command resumes."
        print(text, file=sys.stderr, flush=True)


def stop(reason: str) -> None:
    """End training for `reason`: `KeyboardInterrupt` for SIGINT, else `SystemExit`, with 143 for another signal."""
    if reason == "SIGINT":
        raise KeyboardInterrupt
    # 143 is what a shell reports for a process that SIGTERM ended: 128 + 15.
    raise SystemExit(REJOIN if reason == NEWCOMER else 143)
