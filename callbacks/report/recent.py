"""The means of logs over a few steps, out of the running means of the epoch that callbacks are told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

_OWNERS = ("unisono", "keras")  # of the methods of a model whose logs are what they are called


class RecentMeans:
    """Owns the sums of an epoch so far.

        running mean m after a steps, n after b steps:    mean of the steps between = (b n - a m) / (b - a)

    A last batch of fewer rows counts as a whole one.

    Args:
        names: of the logs that are running means.

    >>> recent = RecentMeans({"loss"})
    >>> recent.begin_epoch(0)
    >>> recent.take(2, {"loss": 3.0}), recent.take(4, {"loss": 2.0})
    ({'loss': 3.0}, {'loss': 1.0})
    """

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self._step, self._sums = 0, dict.fromkeys(names, 0.0)

    def begin_epoch(self, step: int) -> None:
        """An epoch begins, or is continued after `step` steps: what these summed up to is not known."""
        self._step, self._sums = step, {} if step else dict.fromkeys(self._names, 0.0)

    def take(self, step: int, logs: Mapping[str, float | None]) -> dict[str, float]:
        """The means over the steps since the last call; `logs`: the running means after `step` steps of the epoch."""
        values = {name: value for name in self._names if (value := logs.get(name)) is not None}
        sums = {name: step * value for name, value in values.items()}
        steps, before = step - self._step, self._sums
        if steps > 0:
            self._step, self._sums = step, sums
            return {name: (sums[name] - before[name]) / steps for name in sorted(sums) if name in before}
        return {}


def running_means(model: Any, logs: Mapping[str, Any]) -> set[str]:
    """The names of those logs that are means over the epoch so far: of metrics that are, in a step that is Keras'."""
    for method in ("train_step", "compute_metrics"):
        if getattr(type(model), method).__module__.partition(".")[0] not in _OWNERS:
            return set()
    kinds = {metric.name: _is_mean(metric) for metric in _all_metrics(model.metrics)}
    found = set()
    for log in logs:
        # An output's name stands before that of its metric.
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
