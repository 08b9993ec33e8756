"""The means of logs over a few steps, out of the running means of the epoch that callbacks are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras

_OWNERS = ("unisono", "keras")  # of the methods of a model whose logs are what they are called


class RecentMeans:
    """Owns the sums of an epoch so far, and the points that are not yet written.

        running mean m after a steps, n after b steps:    mean of the steps between = (b n - a m) / (b - a)

    A last batch of fewer rows counts as a whole one. A point is the mean over one step at first; whenever there are
    `most_points` it is from then on one over twice as many, so that the page of a long run stays readable.

    Args:
        names: of the logs that are running means.
        most_points: int.

    >>> recent = RecentMeans({"loss"})
    >>> recent.begin_epoch(0)
    >>> recent.add(0, {"loss": [3.0, 2.0]})
    >>> recent.take()
    {'steps': [1, 2], 'means': {'loss': [3.0, 1.0]}}
    """

    def __init__(self, names: set[str], most_points: int = 400) -> None:
        self.names, self._most_points = names, most_points
        self._step, self._sums = 0, dict.fromkeys(names, 0.0)
        self._steps_per_point = 1
        self._count = 0
        self._points: list[tuple[int, dict[str, float]]] = []

    def begin_epoch(self, step: int) -> None:
        """An epoch begins, or is continued after `step` steps: what these summed up to is not known."""
        self._step, self._sums = step, {} if step else dict.fromkeys(self.names, 0.0)

    def add(self, first: int, logs: Mapping[str, Sequence[float]], whole: bool = False) -> None:
        """Takes the running means after steps `first`, `first + 1`, ... of the epoch, counted from 0.

        `whole`: the steps that are left for less than a point become one.
        """
        known = {name: logs[name] for name in sorted(self.names) if name in logs}
        done = first + min(map(len, known.values()), default=0)
        while done > max(self._step, first):
            step = max(self._step + self._steps_per_point, first + 1)
            if step > done and not whole:
                break
            step = min(step, done)
            sums = {name: step * float(column[step - 1 - first]) for name, column in known.items()}
            means = {
                name: float(f"{(value - self._sums[name]) / (step - self._step):.6g}")
                for name, value in sums.items()
                if name in self._sums
            }
            self._step, self._sums = step, sums
            if means:
                self._points.append((step, means))
                self._count += 1
            if self._count >= self._most_points:
                self._count, self._steps_per_point = self._most_points // 2, 2 * self._steps_per_point

    def take(self) -> dict[str, Any]:
        """The points since the last call: their steps, and for each log its means."""
        points, self._points = self._points, []
        names = sorted({name for _, means in points for name in means})
        means = {name: [values.get(name) for _, values in points] for name in names}
        return {"steps": [step for step, _ in points], "means": means} if points else {}


def running_means(model: Any, logs: Mapping[str, Any]) -> set[str]:
    """The names of those logs that are means over the epoch so far: of metrics that are, in a step that is Keras'."""
    for method in ("train_step", "compute_metrics"):
        if getattr(type(model), method).__module__.partition(".")[0] not in _OWNERS:
            return set()
    kinds = {metric.name: _is_mean(metric) for metric in _all_metrics(model.metrics)}
    found = set()
    for log in logs:
        # An output's name comes before that of its metric.
        fitting = [name for name in kinds if log == name or log.endswith(f"_{name}")]
        if fitting and all(kinds[name] for name in fitting):
            found.add(log)
    return found


def _is_mean(metric: Any) -> bool:
    """Whether its result is the mean itself; that of RootMeanSquaredError, say, is not."""
    return isinstance(metric, keras.metrics.Mean) and type(metric).result is keras.metrics.Mean.result


def _all_metrics(metrics: Any) -> list[Any]:
    """Without those that hold others."""
    found = []
    for metric in metrics:
        inner = getattr(metric, "metrics", None)
        found += _all_metrics(inner) if isinstance(inner, list) else [metric]
    return found
