"""The progress bar, also with many steps per compiled call, unknown lengths, resumed epochs, workers and log files.

Before the first epoch of a `fit` and after its last one, it prints a line of `fit_lines.py`.
"""

import logging
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from ...distribute.arguments import function, show
from ...distribute.workers.cluster import is_chief
from ..callback import Callback
from .fit_lines import FitLines, speeds
from .formatting import duration, fit_to_width, scalar

_WIDTH = 20
_SCREEN_SECONDS = 0.1
_FILE_SECONDS = 30.0


class Rate:
    """The seconds of a step since `began`; a first call that `compiles` counts only while there is no other."""

    def __init__(self, began: float, first_step: int, compiles: bool) -> None:
        self.began = began
        self.compiling = compiles  # and nothing is known of other calls
        self._first = self._last = first_step, began  # (steps done, time) between which calls count
        self._calls = 0

    def update(self, step: int, now: float) -> None:
        """Note that `step` steps of the epoch are done."""
        self._calls += 1
        if self.compiling and self._calls == 2:
            self._first, self.compiling = self._last, False
        self._last = step, now

    @property
    def measured(self) -> tuple[int, float]:
        """The steps of this epoch that count, and their seconds."""
        return self._last[0] - self._first[0], self._last[1] - self._first[1]

    @property
    def seconds_per_step(self) -> float | None:
        """Mean over the compiled calls of this epoch; None before the first one ended."""
        steps, seconds = self.measured
        return seconds / steps if steps > 0 else None


class ProgressBar(Callback, keras.callbacks.ProgbarLogger):
    """Prints the progress of training: steps, time left, samples per second, metrics, the loss scale and skipped steps.

    `fit`, `evaluate` and `predict` add it unless `verbose` is 0. On a terminal and in a notebook it redraws one line. To a
    file it writes whole lines, at most one every 30 seconds, and one per epoch. With several workers only the chief prints.

    Args:
        stream: file to write to; None: `sys.stdout` at the time when a line is printed.
        clock: () -> float; seconds.

    Examples:
        >>> bar = unisono.callbacks.ProgressBar(stream=sys.stdout)
        >>> history = model.fit(x, y, batch_size=32, callbacks=[bar])
        Training on CPU:0, ... parameters, batch 32, float32, ...
        2/2 ━━━━━━━━━━━━━━━━━━━━ ... samples/s - loss: ...
        1 epoch in ...
    """

    waits_for_compiled_calls = True

    def __init__(self, stream: Any = None, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        if stream is not None and not hasattr(stream, "write"):
            raise ValueError(f"`stream` must be an open file to write text to. Received: {show(stream)}")
        self._stream = stream
        self._clock = function("clock", clock)
        self._rate = Rate(clock(), 0, compiles=False)
        self._printed_at = float("-inf")
        self._last_width = 0
        self._line_open = False
        self._first_epoch = True
        self._chief = True
        self._lines: FitLines | None = None

    def set_params(self, params: dict[str, Any]) -> None:
        """Receive `verbose`, `epochs` and `steps` of the loop (Keras calls this)."""
        super().set_params({"verbose": 1, "epochs": 1, "steps": None, **params})
        self.params = params

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin a `fit`."""
        self._called_in_fit = True
        self._first_epoch = True
        self._lines = None

    def on_train_end(self, logs: Any = None) -> None:
        """Print the last line; after `fit`, `evaluate` and `predict` print for themselves again."""
        self._called_in_fit = False
        if self._lines is not None:
            self._write(self._lines.last(self._clock()) + "\n")

    def on_fit_exit(self) -> None:
        """End the line that is redrawn in place, so that an error message begins on a line of its own."""
        self._called_in_fit = False
        if self._line_open:
            self._write("\n")

    def on_test_begin(self, logs: Any = None) -> None:
        """Begin the bar of `evaluate`; a validation inside `fit` is silent, as in Keras."""
        if not self._called_in_fit:
            self.on_predict_begin()

    def on_predict_begin(self, logs: Any = None) -> None:
        """Begin the bar of `predict`."""
        self._first_epoch = True
        self._begin(0)
        self._show_compiling()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Print the number of the epoch; a resumed epoch begins at its step."""
        state = getattr(self.model, "fit_state", None)
        if state is not None and state.steps_per_epoch is not None:
            self.target = state.steps_per_epoch
        done = state.step if state is not None else 0  # a custom loop has no fit state
        starts = self._first_epoch and self.verbose in (1, 2) and is_chief()
        if starts and state is not None and state.function is not None:
            self._lines = FitLines(self.model, state, self._clock())
            self._write(self._lines.first() + "\n")
        self._begin(done)
        if self.verbose and self._chief and self.epochs > 1:
            resumed = f" (resumed after step {done})" if done else ""
            self._write(f"Epoch {epoch + 1}/{self.epochs}{resumed}\n")
        self._show_compiling()

    def _begin(self, done: int) -> None:
        self.seen = done
        self._chief = is_chief()
        self._rate = Rate(
            self._clock(), done, compiles=self._first_epoch and not getattr(self.model, "run_eagerly", False)
        )
        self._first_epoch = False
        self._printed_at = float("-inf") if self._in_place else self._rate.began
        self._last_width = 0

    def _show_compiling(self) -> None:
        if self._rate.compiling and self._in_place and self.verbose == 1 and self._chief:
            self._print({}, last=False)

    # Keras' hooks for the end of a batch and of an epoch, an evaluation or a prediction end here.

    def _update_progbar(self, batch: int, logs: Any = None) -> None:
        self.seen = batch + 1
        now = self._clock()
        self._rate.update(self.seen, now)
        self._write_late_part()
        wait = _SCREEN_SECONDS if self._in_place else _FILE_SECONDS
        if self.verbose == 1 and self._chief and now - self._printed_at >= wait:
            self._printed_at = now
            self._print(logs, last=False)

    def _finalize_progbar(self, logs: Any) -> None:
        self.target = self.seen if self.target is None else self.target
        if self._lines is not None and self._called_in_fit:
            self._lines.count(*self._rate.measured)
        if self.verbose in (1, 2) and self._chief:
            self._print(logs, last=True)

    def _write_late_part(self) -> None:
        """Write what the first line could not say before the first step was traced."""
        if self._lines is not None and (parts := self._lines.take_late()):
            text = ",\n".join(f"  {part}" for part in parts)
            self._write(f"\r{'':{self._last_width}}\r" * self._line_open + f"{text}\n")

    def _print(self, logs: Any, last: bool) -> None:
        metrics = [f" - {name}: {_log(value)}" for name, value in (logs or {}).items()]
        parts = self._parts(last)
        line = " ".join(parts) + "".join(metrics)
        if not self._in_place or self.verbose == 2:
            self._write(line + "\n")
            return
        if (columns := self._columns()) is not None:
            line = fit_to_width(parts, metrics, columns - 1, may_wrap=last)
        padding = " " * max(0, self._last_width - len(line))
        self._last_width = len(line)
        # Bold counts and a green bar, as Keras draws them.
        coloured = re.sub(r"^\S+", "\33[1m\\g<0>\33[0m", re.sub("━+", "\33[32m\\g<0>\33[0m", line))
        self._write("\r" + coloured + padding + ("\n" if last else ""))

    def _parts(self, last: bool) -> list[str]:
        target, seconds = self.target, self._rate.seconds_per_step
        if target:
            parts = [f"{self.seen:{len(str(target))}d}/{target}"]
            if self.verbose == 1:
                filled = min(_WIDTH, int(_WIDTH * self.seen / target))
                full, empty = ("━", "─") if self._can_print("━─") else ("=", ".")
                parts.append(full * filled + empty * (_WIDTH - filled))
        else:
            parts = [f"{self.seen:7d}/Unknown"]
        if self._rate.compiling and not last and self.seen != target:
            return [*parts, "compiling…" if self._can_print("…") else "compiling..."]
        if last or not target or seconds is None or self.seen >= target:
            parts.append(duration(self._clock() - self._rate.began))
        else:
            left = seconds * (target - self.seen)
            later = self._seconds_of_later_epochs(seconds * target)
            run = " ".join(duration(left + later).split()[:2])
            parts.append(f"{duration(left)} left" + (f" (run {run})" if later else ""))
        if seconds is not None:
            parts.append(f"{duration(seconds)}/step")
            if (state := getattr(self.model, "fit_state", None)) is not None and seconds > 0:
                parts += speeds(state, 1 / seconds)
        return parts

    def _seconds_of_later_epochs(self, training: float) -> float:
        """Return the time of the epochs after this one, if each trains for so long, and validates as before."""
        state = getattr(self.model, "fit_state", None)
        if state is None or state.custom_loop:
            return 0.0
        validation = state.times.seconds.get("validation", 0.0) / max(1, state.epoch - state.first_epoch)
        return (state.epochs - state.epoch - 1) * (training + validation)

    @property
    def _file(self) -> Any:
        return self._stream or sys.stdout

    @property
    def _in_place(self) -> bool:
        """Whether a line can be redrawn: on a terminal, in a notebook, in an IDE that says so."""
        if not keras.config.is_interactive_logging_enabled():
            return False
        isatty = getattr(self._file, "isatty", None)
        return bool(isatty and isatty()) or "ipykernel" in sys.modules or "PYCHARM_HOSTED" in os.environ

    def _columns(self) -> int | None:
        """Return the width of the terminal; None where there is none, as in a notebook."""
        try:
            return os.get_terminal_size(self._file.fileno()).columns or None
        except (OSError, ValueError, AttributeError):
            return None

    def _can_print(self, text: str) -> bool:
        try:
            text.encode(getattr(self._file, "encoding", None) or "utf-8")
        except (UnicodeEncodeError, LookupError):
            return False
        return True

    def _write(self, text: str) -> None:
        if self._stream is None and not keras.config.is_interactive_logging_enabled():
            logging.getLogger("absl").info(text.rstrip("\n"))
            return
        self._line_open = not text.endswith("\n")
        self._file.write(text)
        self._file.flush()


def _log(value: Any) -> str:
    """Return a log as text: whole numbers from 2 on (counts, loss scale) without fraction, small ones with exponent."""
    if isinstance(value, int | np.integer):
        return str(value)
    if (number := scalar(value)) is None:
        return str(value)
    if abs(number) >= 2 and number.is_integer():
        return str(int(number))
    return f"{number:.4f}" if abs(number) > 1e-3 or number == 0 else f"{number:.4e}"
