"""Metrics in a loop of the user's own, exact over several replicas: whichever metric the replicas update.

`global_metrics` says how an update is made; a trainer knows the metrics of its model, and here none is known. So the methods
are put into the classes, while a replica computes a step. In another thread, and in a plain step, they do what they did.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras

from ...compat.shared_change import shared_change
from ...compat.training import CompileMetrics, MetricsList
from ...distribute.step_context import StepContext, current_step
from .global_metrics import exact_result, exact_update

_UPDATING = "updating a metric"
_installed: list[tuple[type, str, Any]] = []


def every_metric_exact() -> contextlib.AbstractContextManager[None]:
    """Inside, an update of a metric counts the rows of all replicas, and its result is theirs, where a step says so."""
    return _exact()


def _install() -> None:
    for owner in _classes(keras.metrics.Metric):
        for name, exact in (("update_state", exact_update), ("result", exact_result)):
            original = vars(owner).get(name)
            if callable(original):
                _installed.append((owner, name, original))
                setattr(owner, name, _in_a_step(original, exact))


def _restore() -> None:
    for owner, name, original in _installed:
        setattr(owner, name, original)
    _installed.clear()


_exact = shared_change(_install, _restore)


def _classes(base: type) -> Iterator[type]:
    """The class and all that are made from it, but for Keras' containers of metrics."""
    if not issubclass(base, CompileMetrics | MetricsList):
        yield base
        for inner in base.__subclasses__():
            yield from _classes(inner)


def _in_a_step(original: Callable[..., Any], exact: Callable[..., Any]) -> Callable[..., Any]:
    """The method, exact where a metric is asked by a step; what it calls in turn, `super()` too, is what it was."""

    @functools.wraps(original)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        step: StepContext | None = current_step()
        if step is None or not step.shares or step.num_replicas == 1 or step.notes.get(_UPDATING):
            return original(self, *args, **kwargs)
        step.notes[_UPDATING] = True
        try:
            return exact(self, functools.partial(original, self), *args, **kwargs)
        finally:
            step.notes[_UPDATING] = False

    return method
