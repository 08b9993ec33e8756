"""`TrainingReport`: one HTML page about a training run, updated while it runs."""

import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

import keras

from ...distribute.arguments import function, number, show, truth
from ...distribute.environment import without_password
from ...distribute.parameter_servers.updates import on_parameter_servers
from ...distribute.storage import storage_path
from ...distribute.workers.agreement import gather_json
from ..custom_loop import CustomLoopSupport
from ..monitoring.formatting import scalar
from ..monitoring.json_lines import LineFile, jsonable
from ..safe_file import begins_with_json, check_overwrite, write_safely
from .charts import check_installed
from .facts import facts_of, memory_bytes
from .page import PAGE, render
from .runs import Run, read_run

_MOST_SHARE = 0.01  # of the time of a run that writing its page may take
_LEAST_SHARE = 0.005  # of the steps so far, between two entries: the page of a long run stays readable


class TrainingReport(CustomLoopSupport):
    """Writes a page with the curves, throughput, time, memory, configuration and restarts of a training run.

    It needs matplotlib and Jinja2: `pip install matplotlib jinja2`.

    The page is one file that loads nothing else: it can be mailed, printed, and read on a phone. The numbers are stored
    next to it, one JSON object per line, from which `python -m unisono report` can rebuild it. With several workers the
    chief writes both; every worker must have the callback, because they exchange their times at the end of each epoch.

    Args:
        path: the page; the data has the same name with `.jsonl`. Files that no `TrainingReport` wrote are rejected.
        title: str; None: the model's name.
        refresh_seconds: float; the page is written at most this often, in at most 1 % of the time, and at the end.
        gradient_norm: bool; measure the norm of the gradients, and on CPUs the wait for all-reduces, in each step.
        clock: () -> float; seconds since 1970.
        config: dict[str, Any]; your settings, for the page and the comparison of runs; passwords in URLs are left out.
        notes: str; your words about the run, shown below the title.

    Examples:
        >>> report = unisono.callbacks.TrainingReport("report.html")
        >>> history = model.fit(x, y, verbose=0, callbacks=[report])
    """

    output_paths = {"path": False}
    waits_for_compiled_calls = True

    def __init__(
        self,
        path: str | os.PathLike[str] = "report.html",
        title: str | None = None,
        refresh_seconds: float = 10.0,
        gradient_norm: bool = True,
        clock: Callable[[], float] = time.time,
        config: Mapping[str, Any] | None = None,
        notes: str | None = None,
    ) -> None:
        super().__init__()
        check_installed()
        self.path = storage_path("path", path)
        if self.path.suffix not in (".html", ".htm"):
            raise ValueError(f"`path` must end in .html. Received: {str(path)!r}")
        self.title = None if title is None else str(title)
        self.refresh_seconds = number("refresh_seconds", refresh_seconds, least=0)
        self.gradient_norm = truth("gradient_norm", gradient_norm)
        self._clock = function("clock", clock)
        if not isinstance(config, Mapping | None) or not all(isinstance(key, str) for key in config or ()):
            raise ValueError(f"`config` must be None or a dict whose keys are str. Received: {show(config)}")
        if not isinstance(notes, str | None):
            raise ValueError(f"`notes` must be None or a str. Received: {show(notes)}")
        self.config = json.loads(without_password(json.dumps(jsonable(config or {}))))
        self.notes = notes
        self._file = LineFile(self.path.with_suffix(".jsonl"))
        self._forget()

    def _forget(self) -> None:
        self._resumed = False
        self._began: Any = None  # the time; None outside a run
        self._watch: Any = None
        self._run: Run | None = None
        self._means: set[str] | None = None  # the names of the logs that are running means
        self._own_seconds = self._render_seconds = 0.0

    def get_state(self) -> dict[str, int]:
        """Return where the numbers end now, for backups."""
        return {"size": self._file.size}

    def set_state(self, state: dict[str, int]) -> None:
        """Continue there on resume, and note the restart."""
        self._resumed = self._file.continue_at(state["size"]) or self._resumed

    def on_train_begin(self, logs: Any = None) -> None:
        """Add the measurement to the step, before it is compiled."""
        self._forget()
        self._watch_plain_fit()
        self._file.path = self.path.with_suffix(".jsonl")
        if self._fit_state().chief:
            argument = "`path` of `TrainingReport`"
            check_overwrite(argument, self._file.path, begins_with_json("event", "time"))
            check_overwrite(argument, self.path, PAGE)
        if self.gradient_norm and not on_parameter_servers(self.model.distribute_strategy):
            self._watch = self._watch_gradients()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Write the facts of the run when it begins."""
        state = self._fit_state(epoch=epoch, lap="other")
        if self._began is None:
            self._began = self._written_at = self._clock()
            self._steps = self._noted = 0
            event = "restart" if state.step or self._resumed else "begin"
            if state.chief:
                given = {"title": self.title or self.model.name, "config": self.config, "notes": self.notes}
                self._write(event, **given, **facts_of(self.model, state))
        self._epoch_began, self._epoch_first_step = self._clock(), state.step
        self._times_before = dict(state.times.seconds)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """In a custom loop, note how long it waited for its batch."""
        self._fit_state(lap="input")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Note the numbers and update the page, both when they are due."""
        state = self._fit_state(batch=batch, lap="compute")
        steps = self._steps + state.step - self._epoch_first_step
        if not state.chief or steps - self._noted < _LEAST_SHARE * steps:
            return
        self._noted = steps
        self._write("step", **self._numbers(logs))
        self._render_if_due()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Note the epoch, with the times of every worker, and update the page."""
        state = self._fit_state()
        steps, before = state.step - self._epoch_first_step, self._times_before
        seconds = {part: value - before.get(part, 0.0) for part, value in state.times.seconds.items()}
        mine = {"host": socket.gethostname(), "steps": steps, "seconds": seconds, "memory": memory_bytes()}
        if self._watch is not None:
            with self._scope():
                mine["waited"] = self._watch.all_reduce_seconds
        workers = gather_json(mine, self.model.distribute_strategy)
        self._steps += steps
        if not state.chief:
            return
        self._write(
            "epoch",
            **self._numbers(logs),
            steps=steps,
            rows_per_step=state.samples_per_step,
            elapsed=self._clock() - self._epoch_began,
            report_seconds=self._own_seconds,
            workers=workers,
        )
        self._own_seconds = 0.0
        self._render_if_due()

    def on_train_end(self, logs: Any = None) -> None:
        """Write the page for the last time."""
        self._end("stopped early" if getattr(self.model, "stop_training", False) else "finished")

    def on_fit_exit(self) -> None:
        """Write the page after an error too."""
        self._end("ended by an error")

    def _end(self, how: str) -> None:
        if self._began is None:
            return
        if self._fit_state().chief:
            self._write("end", how=how)
            self._render()
        self._file.close()
        self._began = None

    def _numbers(self, logs: Any) -> dict[str, Any]:
        state = self._fit_state()
        if self._means is None:  # elsewhere the steps of an epoch are counted differently
            counted = self._in_fit and not on_parameter_servers(self.model.distribute_strategy)
            self._means = find_running_means(self.model, logs or {}) if counted else set()
        values = {name: scalar(value) for name, value in (logs or {}).items()}
        result = {
            "epoch": state.epoch,
            "step": state.step,
            "steps_per_epoch": state.steps_per_epoch,
            "logs": values,
            "means": sorted(self._means & values.keys()),
            "learning_rate": self._find_learning_rate(values),
        }
        if self._watch is not None:
            with self._scope():
                result["gradient_norm"] = self._watch.norm
        return result

    def _find_learning_rate(self, logs: dict[str, Any]) -> Any:
        """Return the rate that a callback has logged, which may have changed that of the optimizer since; or that."""
        rate = getattr(self._optimizer, "learning_rate", None)
        return logs.get("learning_rate", None if rate is None else scalar(rate))

    def _write(self, event: str, **values: Any) -> None:
        began = self._clock()
        line = self._file.write({"event": event, "time": began, **values})
        if self._run is not None:
            self._run.add(line)
        self._own_seconds += self._clock() - began

    def _render_if_due(self) -> None:
        """Write the page, if the last one is old enough; the first one as soon as there are numbers."""
        since = self._clock() - self._written_at
        if self._run is None or since >= max(self.refresh_seconds, self._render_seconds / _MOST_SHARE):
            self._render()

    def _render(self) -> None:
        began = self._clock()
        if self._run is None:
            self._run = read_run(self._file.path)
        page = render([self._run], refresh_seconds=self.refresh_seconds)
        write_safely(self.path, lambda stream: stream.write(page.encode(errors="replace")))
        self._written_at = self._clock()
        self._render_seconds = self._written_at - began
        self._own_seconds += self._render_seconds


def find_running_means(model: Any, logs: Mapping[str, Any]) -> set[str]:
    """Return the logs that are means over the epoch so far: of `Mean` metrics, in a model with Keras' own step."""
    for method in ("train_step", "compute_metrics"):
        if getattr(type(model), method).__module__.partition(".")[0] not in ("unisono", "keras"):
            return set()
    # Whether the result is the mean itself; that of RootMeanSquaredError, for example, is not.
    mean, metrics = keras.metrics.Mean, _all_metrics(model.metrics)
    kinds = {each.name: isinstance(each, mean) and type(each).result is mean.result for each in metrics}
    # An output's name comes before that of its metric.
    fitting = {log: [kind for name, kind in kinds.items() if f"_{log}".endswith(f"_{name}")] for log in logs}
    return {log for log, found in fitting.items() if found and all(found)}


def _all_metrics(metrics: Any) -> list[Any]:
    """Return all metrics but those that hold others."""
    found = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found += _all_metrics(inner) if isinstance(inner, list) else [metric]
    return found
