"""Measures the aggregated gradients of every step, in the compiled step: their norm, and whether they are finite."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from ...compat.keras_private.optimizers import trained_variables
from ...distribute.replicas import copies_of, local_copy, num_replicas, once_per_copy, shares_variables
from . import clipping
from .sparse_gradients import Pairs, values_of
from .step_hooks import StepHook, add_step_hook, remove_step_hook, step_hooks


class GradientWatch(StepHook):
    """Measurements of the gradients of one optimizer's variables, kept on the devices until they are read.

    `guard`: skip the first step whose gradients are not finite and every step after it, so that the model stays as it was
    before that step. Not with a loss scale, under which such steps are normal. Context: host, inside the strategy's scope.
    """

    def __init__(self, variables: Sequence[Any], guard: bool = False) -> None:
        self.guard = guard
        self.ids = [id(v) for v in variables]
        self._paths = [getattr(v, "path", v.name) for v in variables]
        only: Any = {"trainable": False, "aggregation": tf.VariableAggregation.ONLY_FIRST_REPLICA}
        self._norm = tf.Variable(tf.constant(0.0), **only)
        self._good = tf.Variable(tf.constant(0, tf.int64), **only)
        self._tripped = tf.Variable(tf.constant(False), **only)
        self._not_finite = tf.Variable(tf.zeros([len(self._paths)], tf.bool), **only)
        self._waited = tf.Variable(tf.zeros([], tf.float64), trainable=False)
        self._timed = (
            num_replicas() > 1 and not shares_variables() and not tf.config.list_logical_devices("GPU")
        )

    @property
    def norm(self) -> float:
        """The global norm of the last step's gradients, unscaled, before transformers and clipping."""
        return float(_first(self._norm))

    @property
    def tripped(self) -> bool:
        """Whether the guard has skipped a step."""
        return bool(_first(self._tripped))

    def has_tripped(self) -> tf.Tensor:
        """Return `tripped` as a bool scalar tensor. Context: cross-replica, while a step is traced."""
        return copies_of(self._tripped)[0].read_value()

    @property
    def good_steps(self) -> int:
        """Calls before the guard tripped, since `reset`."""
        return int(_first(self._good))

    @property
    def not_finite(self) -> list[str]:
        """Paths of the variables whose gradients were not finite in the step that tripped the guard."""
        return [path for path, bad in zip(self._paths, _first(self._not_finite)) if bad]

    @property
    def all_reduce_seconds(self) -> list[float] | None:
        """Seconds that each replica here has waited for sums; None where it is unknown: on one replica, and on GPUs."""
        if not self._timed:
            return None
        return [float(copy.numpy()) for copy in copies_of(self._waited)]

    def reset(self) -> None:
        """Arm the guard again."""
        self._tripped.assign(False)
        self._good.assign(0)
        self._not_finite.assign(tf.zeros_like(self._not_finite))

    def before_aggregation(self, pairs: Pairs) -> Any:
        """Return the time at which this replica's own gradients are complete. Context: replica."""
        if not self._timed:
            return None
        with tf.control_dependencies([values_of(g) for g, _ in pairs if g is not None]):
            return tf.timestamp()

    def after_aggregation(self, pairs: Pairs, before: Any) -> None:
        """Note how long the sums took since then."""
        if before is not None:
            with tf.control_dependencies([values_of(g) for g, _ in pairs if g is not None]):
                local_copy(self._waited).assign_add(tf.timestamp() - before)

    def check_gradients(self, pairs: Pairs, finite: Any) -> Any:
        """Record the norm; the guard turns the finite check to false."""
        values = {id(v): values_of(g) for g, v in pairs if g is not None}
        norm = (
            tf.cast(clipping.global_norm(list(values.values())), tf.float32) if values else tf.constant(0.0)
        )
        if not self.guard:
            once_per_copy(lambda norm: local_copy(self._norm).assign(norm))(norm)
            return finite
        good = tf.constant(True)
        found = {key: tf.reduce_all(tf.math.is_finite(value)) for key, value in values.items()}
        bad = [tf.logical_not(found.get(key, good)) for key in self.ids]
        bad = clipping.over_shards(tf.cast(tf.stack(bad), tf.float32)) > 0
        good = tf.logical_not(tf.reduce_any(bad))
        before = tf.identity(local_copy(self._tripped))
        once_per_copy(self._note)(norm, good, before, bad)
        return tf.logical_and(tf.convert_to_tensor(finite), tf.logical_and(good, tf.logical_not(before)))

    def _note(self, norm: Any, finite: Any, before: Any, bad: Any) -> None:
        local_copy(self._norm).assign(norm)
        local_copy(self._good).assign_add(tf.cast(tf.logical_and(finite, tf.logical_not(before)), tf.int64))
        local_copy(self._tripped).assign(tf.logical_or(before, tf.logical_not(finite)))
        kept = local_copy(self._not_finite)
        kept.assign(tf.where(before, kept, bad))


def watch_gradients(optimizer: Any, guard: bool = False) -> tuple[GradientWatch, bool]:
    """Return the watch of a built optimizer, and whether it is new: then the step must be compiled again. Context: host."""
    optimizer = getattr(optimizer, "inner_optimizer", None) or optimizer
    variables = trained_variables(optimizer)
    for watch in [each for each in step_hooks(optimizer) if isinstance(each, GradientWatch)]:
        if watch.ids != [id(v) for v in variables]:
            remove_step_hook(optimizer, watch)
        elif watch.guard >= guard:
            return watch, False
    watch = GradientWatch(variables, guard)
    add_step_hook(optimizer, watch)
    return watch, True


def _first(variable: Any) -> np.ndarray:
    return copies_of(variable)[0].numpy()
