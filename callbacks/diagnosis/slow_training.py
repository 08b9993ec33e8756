"""`Diagnosis`: warnings while training runs, with measurements: slow input, a straggler, repeated compilation."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from ...distribute.arguments import number, whole_number
from ...distribute.workers.agreement import gather_json, spans_workers
from ..custom_loop import CustomLoopSupport
from ..trained_model import FitState


class DiagnosisWarning(UserWarning):
    """Training works, but slower than it could: the base class of the warnings of `Diagnosis`.

    Examples:
        >>> warnings.simplefilter("error", unisono.callbacks.DiagnosisWarning)  # all kinds
        >>> warnings.simplefilter("ignore", unisono.callbacks.SlowInputWarning)  # or RetracingWarning, StragglerWarning
    """


class SlowInputWarning(DiagnosisWarning):
    """Steps wait for batches."""


class StragglerWarning(DiagnosisWarning):
    """All workers wait for one."""


class RetracingWarning(DiagnosisWarning):
    """The step is compiled again and again."""


class Diagnosis(CustomLoopSupport, keras.callbacks.Callback):
    """Warns, once each, when training is slower than it could be. Every worker must have the callback; the chief warns.

    Args:
        slow_input: float from 0 to 1; warn if waiting for batches takes more than this share of an epoch's steps.
        straggler: float from 0 to 1; warn if one worker makes the others wait for more than this share of an epoch's
            steps. Measured on CPUs; on GPUs by the time that workers spend outside of the steps.
        compilations: int; warn if the training step is compiled more often than this in one `fit`.
        least_seconds: float; epochs whose steps took less are not judged.

    Examples:
        >>> history = model.fit(x, y, verbose=0, callbacks=[unisono.callbacks.Diagnosis()])
    """

    waits_for_compiled_calls = True

    def __init__(
        self,
        slow_input: float = 0.2,
        straggler: float = 0.2,
        compilations: int = 4,
        least_seconds: float = 1.0,
    ) -> None:
        super().__init__()
        self.slow_input = number("slow_input", slow_input, least=0, most=1)
        self.straggler = number("straggler", straggler, least=0, most=1)
        self.compilations = whole_number("compilations", compilations, 0)
        self.least_seconds = number("least_seconds", least_seconds, least=0)

    def on_train_begin(self, logs: Any = None) -> None:
        """Adds the measurement of waiting to the step where there are several workers."""
        self._warned: set[type[Warning]] = set()
        self._layouts: list[list[tuple[str, str]]] = []
        self._compiled = 0
        several = spans_workers(self.model.distribute_strategy)
        self._watch = self._watched_gradients() if several else None

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Notes what had been measured before the epoch."""
        self._fit_state(epoch=epoch, lap="other")
        self._before = self._measured()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """In a custom loop, notes how long its batch was waited for."""
        self._fit_state(lap="input")

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Checks whether the step was compiled again, and why."""
        self._fit_state(batch=batch, lap="compute")
        if not self._in_fit:  # a custom loop compiles its own step
            return
        compiled = self.model.train_function.compilations()
        if compiled == self._compiled:
            return
        self._compiled = compiled
        self._layouts.append(layout(self.model.fit_state))
        if compiled > self.compilations:
            self._warn(RetracingWarning, retracing_text(self._layouts, compiled))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Judges the epoch."""
        now = self._measured()
        mine = {name: now[name] - self._before.get(name, 0.0) for name in now}
        mine["host"] = socket.gethostname()
        everyone = gather_json(mine, self.model.distribute_strategy)
        if mine["input"] + mine["compute"] < self.least_seconds:
            return
        self._warn(SlowInputWarning, slow_input_text(everyone, self.slow_input))
        if len(everyone) > 1:
            self._warn(StragglerWarning, straggler_text(everyone, self.straggler))

    def _measured(self) -> dict[str, Any]:
        seconds = self._fit_state().times.seconds
        found: dict[str, Any] = {part: seconds.get(part, 0.0) for part in ("input", "compute", "callbacks")}
        if self._watch is not None:
            with self._scope():
                waited = self._watch.all_reduce_seconds
            if waited:
                found["waited"] = sum(waited) / len(waited)
        return found

    def _warn(self, kind: type[Warning], text: str) -> None:
        if not text or kind in self._warned:
            return
        self._warned.add(kind)
        if self._fit_state().chief:
            warnings.warn(text, kind, stacklevel=2)


def slow_input_text(workers: Sequence[dict[str, Any]], limit: float) -> str:
    """The warning for the worker that waits longest for its input; empty if none waits too long."""
    shares = [w["input"] / max(1e-9, w["input"] + w["compute"]) for w in workers]
    worst = max(range(len(workers)), key=lambda i: shares[i])
    if shares[worst] <= limit:
        return ""
    who = f"Worker {worst} spent" if len(workers) > 1 else "The last epoch spent"
    return (
        f"{who} {shares[worst]:.0%} of the time of its steps ({workers[worst]['input']:.1f} s) waiting for input: end the "
        "dataset with `.prefetch(tf.data.AUTOTUNE)`, pass `num_parallel_calls=tf.data.AUTOTUNE` to its `map`, or "
        "`.cache()` it."
    )


def straggler_text(workers: Sequence[dict[str, Any]], limit: float) -> str:
    """The warning that names the worker for which the others wait; empty if none stands out.

    A sum over workers is complete when the last one contributes its part: the worker that comes last waits least.
    """
    waits = all("waited" in w for w in workers)
    late = [-w["waited"] if waits else w["input"] + w["callbacks"] for w in workers]
    slow = max(range(len(workers)), key=late.__getitem__)

    def beyond_others(values: Sequence[float]) -> float:
        return values[slow] - sum(v for i, v in enumerate(values) if i != slow) / (len(values) - 1)

    lost = beyond_others(late)
    total = workers[slow]["input"] + workers[slow]["compute"] + workers[slow]["callbacks"]
    if lost <= limit * total:
        return ""
    reason = "it computes slowly: look for other programs on that machine"
    if beyond_others([w["input"] for w in workers]) > lost / 2:
        reason = "its input is slow"
    return (
        f"Worker {slow} on {workers[slow]['host']} makes the others wait for {lost / max(total, 1e-9):.0%} of the time "
        f"({lost:.1f} s in the last epoch): {reason}."
    )


def retracing_text(layouts: Sequence[list[tuple[str, str]]], compiled: int) -> str:
    """The warning that names the part of the batch that changes."""
    changes = []
    for index, (name, _) in enumerate(layouts[-1]):
        seen = list(dict.fromkeys(each[index][1] for each in layouts if len(each) == len(layouts[-1])))
        if len(seen) > 1:
            changes.append(f"`{name}` was {', '.join(seen[:4])}")
    cause = "; ".join(changes) or "the kind of input changed"
    return (
        f"The training step was compiled {compiled} times, which costs far more than running it: {cause}. Use batches of "
        "one size (drop or pad the remainder), or a tf.data.Dataset, whose batches may differ."
    )


def layout(fit_state: FitState) -> list[tuple[str, str]]:
    """(name, dtype and shape) of each part of the last batch, for instance ("x", "float32 (32, 8)")."""
    names, call = part_names(fit_state.source.spec), fit_state.compiled_call
    # Without a call the steps run on the workers of a coordinator.
    leaves = [] if call is None else tf.nest.flatten(call.chunks[-1].inputs)
    if len(leaves) < len(names) or not all(hasattr(leaf, "shape") for leaf in leaves):
        return [(name, "") for name in names]
    return [(name, f"{leaf.dtype.name} {tuple(leaf.shape)}") for name, leaf in zip(names, leaves)]


def part_names(spec: Any) -> list[str]:
    """Names of the leaves of a batch: "x", "x['image']", "y", "sample_weight"; "data[3]" in longer tuples.

    >>> part_names(({"a": 1, "b": 2}, 3))
    ["x['a']", "x['b']", 'y']
    """
    parts = spec if isinstance(spec, tuple) else (spec,)
    named = {"data": spec} if len(parts) > 3 else dict(zip(("x", "y", "sample_weight"), parts))
    return [
        name + "".join(f"[{key!r}]" for key in place)
        for name, part in named.items()
        for place, _ in keras.tree.flatten_with_path(part)
    ]
