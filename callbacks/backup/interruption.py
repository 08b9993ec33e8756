"""While training runs, SIGTERM and Ctrl-C become a request to save and stop at the next step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..fit_state import FitState


class InterruptionHandlers:
    """Owns the handlers of SIGTERM and SIGINT from `install` to `remove`.

    The first signal sets `fit_state.asked_to_exit`, and with one worker `save_and_exit`. A second one has its usual
    effect at once, and so has one after the loop has ended (`runs` returns False). It does nothing outside the main thread.
    """

    def __init__(self, runs: Callable[[], bool] = lambda: True) -> None:
        self._runs = runs
        self._previous: dict[int, Any] = {}
        self._fit_state: FitState | None = None

    def install(self, fit_state: FitState) -> None:
        """Handles both signals, unless the program ignores them."""
        if threading.current_thread() is not threading.main_thread():
            return
        self.remove()
        self._fit_state = fit_state
        fit_state.asked_to_exit = fit_state.save_and_exit = None  # of an earlier fit
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)

    def remove(self) -> None:
        """Restores the previous handlers."""
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


def stop(reason: str) -> None:
    """Ends training for `reason`, the name of a signal: `KeyboardInterrupt` for SIGINT, else `SystemExit` with 143."""
    if reason == "SIGINT":
        raise KeyboardInterrupt
    raise SystemExit(143)  # what a shell reports for a process that SIGTERM ended: 128 + 15
