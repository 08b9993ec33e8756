"""The error that ends the program, for those that report it. Needs no TensorFlow."""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
import traceback
import types
from collections.abc import Callable


def at_fatal_error(act: Callable[[BaseException], None]) -> None:
    """Calls `act` with the error that ends the program, after it was printed."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        try:
            previous(kind, error, trace)
        finally:
            if _ends_program(error):
                with contextlib.suppress(Exception):
                    act(error)

    sys.excepthook = hook


def _ends_program(error: BaseException) -> bool:
    """Whether `sys.excepthook` is called because this error ends the program, not by code that continues afterwards."""
    raised = {frame for frame, _ in traceback.walk_tb(error.__traceback__)}
    called_by = {frame for frame, _ in traceback.walk_stack(inspect.currentframe())}
    return raised.isdisjoint(called_by) and threading.current_thread() is threading.main_thread()
