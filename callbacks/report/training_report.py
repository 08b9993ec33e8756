"""`TrainingReport`: one HTML page about a training, updated while it runs."""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

from ...distribute.arguments import function, number, truth
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.storage import local_path
from ...distribute.workers.agreement import gather_json
from ..custom_loop import CustomLoopSupport
from ..json_lines import LineFile
from ..safe_file import begins_with_json, check_overwrite, write_safely
from . import Run, is_page, read_run, render
from .facts import facts_of, memory_bytes
from .recent_means import RecentMeans, running_means

_MOST_POINTS = 400
_MOST_SHARE = 0.01  # of the time of a run that writing its page may take


class TrainingReport(CustomLoopSupport, keras.callbacks.Callback):
    """Writes a page with the curves, throughput, time, memory, configuration and restarts of a training.

    The page is one file that loads nothing else: it can be mailed, printed, and read on a phone. The numbers are stored
    beside it, one JSON object per line, from which `python -m unisono report` can rebuild it. With several workers the
    chief writes both; every worker must have the callback, because they exchange their times at the end of each epoch.

    Args:
        path: of the page; the numbers are written under the same name with `.jsonl`. Files of these names that no
            `TrainingReport` has written are refused.
        title: str; None: the model's name.
        refresh_seconds: float; the page is written at most this often while training runs, and at its end. It is
            written less often where writing it would take more than a hundredth of the time.
        gradient_norm: bool; measure the norm of the gradients (and on CPUs how long replicas wait for the sums), which
            costs a pass over the gradients in each step.
        clock: () -> float; seconds since 1970.
    """

    waits_for_compiled_calls = True

    def __init__(
        self,
        path: str | os.PathLike[str] = "report.html",
        title: str | None = None,
        refresh_seconds: float = 10.0,
        gradient_norm: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__()
        self.path = local_path("path", path)
        if self.path.suffix not in (".html", ".htm"):
            raise ValueError(
                f"`path` must end in .html; the numbers are written beside it as .jsonl. Received: {str(path)!r}"
            )
        self.title = None if title is None else str(title)
        self.refresh_seconds = number("refresh_seconds", refresh_seconds, least=0)
        self.gradient_norm = truth("gradient_norm", gradient_norm)
        self._clock = function("clock", clock)
        self._file = LineFile(self.path.with_suffix(".jsonl"))
        self._resumed = False
        self._began: float | None = None
        self._watch: Any = None
        self._epoch = 0
        self._run: Run | None = None
        self._recent: RecentMeans | None = None
        self._own_seconds = self._render_seconds = 0.0

    def get_state(self) -> dict[str, int]:
        """For backups: where the numbers end now."""
        return {"size": self._file.size}

    def set_state(self, state: dict[str, int]) -> None:
        """On resume: continues there, and notes the restart."""
        self._resumed = self._file.continue_at(state["size"]) or self._resumed

    def set_model(self, model: Any) -> None:
        """Begins a `fit` (Keras calls this). On parameter servers steps are not told: each would be an execution."""
        super().set_model(model)
        self.__dict__.pop("on_train_steps_end", None)
        strategy = getattr(model, "distribute_strategy", None)
        if strategy is not None and not on_parameter_servers(strategy):
            self.on_train_steps_end = self._note_steps

    def on_train_begin(self, logs: Any = None) -> None:
        """Adds the measurement to the step, before it is compiled."""
        self._resumed, self._began, self._watch, self._recent = False, None, None, None
        self._run, self._own_seconds, self._render_seconds = None, 0.0, 0.0
        self._watch_plain_fit()
        if self._fit_state().chief:
            lines = functools.partial(begins_with_json, keys=("event", "time"))
            for path, is_own in ((self._file.path, lines), (self.path, is_page)):
                check_overwrite("`path` of `TrainingReport`", path, is_own)
        if self.gradient_norm and not on_parameter_servers(self.model.distribute_strategy):
            self._watch = self._watched_gradients()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Writes the facts of the run when it begins."""
        self._epoch = epoch
        state = self._fit_state(epoch=epoch, lap="other")
        if self._began is None:
            self._began = self._written_at = self._noted_at = self._clock()
            self._note_every = 0.0
            self._notes = 0
            event = "restart" if state.step or self._resumed else "begin"
            self._write(event, title=self.title or self.model.name, **facts_of(self.model, state))
        self._epoch_began, self._epoch_first_step = self._clock(), state.step
        if self._recent is not None:
            self._recent.begin_epoch(state.step)
        self._times_before = dict(state.times.seconds)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Notes, in a loop of the user's own, how long its batch was waited for."""
        self._fit_state(lap="input")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Notes the numbers and updates the page, both when they are due."""
        now = self._clock()
        state = self._fit_state(batch=batch, lap="compute")
        if now - self._noted_at < self._note_every or not state.chief:
            return
        self._noted_at = now
        self._notes += 1
        if self._notes >= _MOST_POINTS:  # from now on half as often: the page of a long run stays readable
            self._notes, self._note_every = _MOST_POINTS // 2, max(2 * self._note_every, 0.5)
        self._write("step", **self._numbers(logs))
        self._render_if_due()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Notes the epoch, with the times of every worker, and updates the page."""
        state = self._fit_state()
        steps, before = state.step - self._epoch_first_step, self._times_before
        seconds = {part: value - before.get(part, 0.0) for part, value in state.times.seconds.items()}
        mine = {"steps": steps, "seconds": seconds, "memory": memory_bytes()}
        if self._watch is not None:
            with self._scope():
                mine["waited"] = self._watch.all_reduce_seconds
        workers = gather_json(mine, self.model.distribute_strategy)
        if not state.chief:
            return
        rows = state.usual_rows
        if rows and getattr(state.source, "per_worker", False):
            rows *= len(workers)
        self._write(
            "epoch",
            **self._numbers(logs, whole=True),
            steps=steps,
            rows_per_step=rows,
            elapsed=self._clock() - self._epoch_began,
            report_seconds=self._own_seconds,
            workers=workers,
        )
        self._own_seconds = 0.0
        self._render_if_due()

    def on_train_end(self, logs: Any = None) -> None:
        """Writes the page for the last time."""
        self._end("stopped early" if getattr(self.model, "stop_training", False) else "finished")

    def on_fit_exit(self) -> None:
        """Writes the page after an error too."""
        self._end("ended by an error")

    def _end(self, how: str) -> None:
        if self._began is None:
            return
        if self._fit_state().chief:
            self._write("end", how=how)
            self._render()
        self._file.close()
        self._began = None

    def _numbers(self, logs: Any, whole: bool = False) -> dict[str, Any]:
        """The numbers that every line has; `whole`: the epoch has ended."""
        state = self._fit_state()
        learning_rate = getattr(self._optimizer, "learning_rate", None)
        values = {name: _scalar(value) for name, value in (logs or {}).items()}
        result = {
            "epoch": self._epoch,
            "step": state.step,
            "steps_per_epoch": state.steps_per_epoch,
            "logs": values,
            "within": self._within(state.step, values, whole),
            "learning_rate": None if learning_rate is None else _scalar(learning_rate),
        }
        if self._watch is not None:
            with self._scope():
                result["gradient_norm"] = self._watch.norm
        return result

    def _within(self, step: int, logs: dict[str, Any], whole: bool) -> dict[str, Any]:
        """The points within the epoch that are not yet written; they end with this step where steps were not told."""
        recent = self._recent_means(logs)
        recent.add(step - 1, {name: [value] for name, value in logs.items() if value is not None}, whole)
        return recent.take()

    def _recent_means(self, logs: Mapping[str, Any]) -> RecentMeans:
        """What makes means over a few steps; of nothing where the steps of an epoch are counted otherwise."""
        if self._recent is None:
            counted = self._in_fit and not on_parameter_servers(self.model.distribute_strategy)
            self._recent = RecentMeans(running_means(self.model, logs) if counted else set(), _MOST_POINTS)
            self._recent.begin_epoch(self._epoch_first_step)
        return self._recent

    def _note_steps(self, first: int, logs: Mapping[str, Any]) -> None:
        """Takes the logs of every step of an execution, which is not ended for their sake."""
        if self._fit_state().chief:
            self._recent_means(logs).add(first, logs)

    def _write(self, event: str, **values: Any) -> None:
        if not self._fit_state().chief:
            return
        began = self._clock()
        line = self._file.write({"event": event, "time": began, **values})
        if self._run is not None:
            self._run.add(line)
        self._own_seconds += self._clock() - began

    def _render_if_due(self) -> None:
        """Writes the page, if the last one is old enough; the first one as soon as there are numbers."""
        since = self._clock() - self._written_at
        if self._run is None or since >= max(self.refresh_seconds, self._render_seconds / _MOST_SHARE):
            self._render()

    def _render(self) -> None:
        began = self._clock()
        if self._run is None:
            self._run = read_run(self._file.path)
        page = render([self._run], refresh_seconds=self.refresh_seconds)
        write_safely(self.path, lambda stream: stream.write(page.encode()))
        self._written_at = self._clock()
        self._render_seconds = self._written_at - began
        self._own_seconds += self._render_seconds


def _scalar(value: Any) -> float | None:
    try:
        return float(np.mean(np.asarray(value)))
    except (TypeError, ValueError):
        return None
