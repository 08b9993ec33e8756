"""Gradient accumulation: k calls make one update, equal to one call with the k batches together."""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from ...compat.keras_private.optimizers import (
    accumulator_of,
    call_count,
    overwritten_by_gradient,
    track_apart,
    variable_key,
)
from ...compat.keras_private.variables import plain_variable
from ...compat.tensorflow_graphs.graphs import is_inside
from ...distribute.replicas import copies_of, local_copy
from ...distribute.sharding.sharded_value import own_copy
from ...distribute.step_context import current_step
from ..building import inner_optimizers
from ..optimizer_checks import record_of
from .sparse_gradients import Pairs, assign_add, dense, times
from .user_code import has_user_class

_HOST = "CPU:0"


def create_weight(optimizer: Any) -> None:
    """Create `accumulated_weight`, the sum of W since the last update (float64 scalar), apart from Keras' own variables."""
    weight = keras.Variable(
        float(int(call_count(optimizer).numpy()) % _steps(optimizer)),
        dtype="float64",
        trainable=False,
        name="accumulated_weight",
    )
    track_apart(optimizer, "accumulated_weight", weight)


def accumulate(
    optimizer: Any,
    pairs: Pairs,
    weight_total: Any,
    update: Callable[[Pairs], None],
    branch: Callable[..., None],
) -> None:
    """Carry the aggregated gradients of this call; at every k-th call, run `update` on their weighted mean.

    With the total sample weights W_i, the gradient of the k batches together is g = sum_i W_i g_i / sum_i W_i. Both
    sums are carried; the division happens once, at the update. `weight_total` is the W of this call.

    `update`, stages 4 and 5, takes the pairs of the means. `branch` is a conditional, as `if_true`.

    Context: inside `once_per_copy`.
    """
    given = {variable_key(optimizer, v): v for _, v in pairs}
    absent = [(None, v) for key, v in record_of(optimizer).accumulated.items() if key not in given]
    record_of(optimizer).accumulated.update(given)
    accumulators = {id(v): own_copy(accumulator_of(optimizer, v)) for _, v in [*pairs, *absent]}
    carried = local_copy(optimizer.accumulated_weight)
    weight = tf.cast(weight_total, tf.float64)
    total = carried + weight

    def mean_of(gradient: Any, variable: Any) -> Any:
        held = accumulators[id(variable)]
        if overwritten_by_gradient(variable):
            return held if gradient is None else tf.maximum(dense(gradient), held)
        if gradient is not None:
            held = held + tf.cast(dense(gradient), held.dtype) * tf.cast(weight, held.dtype)
        return tf.math.divide_no_nan(held, tf.cast(total, held.dtype))

    def finish() -> None:
        update([(mean_of(g, v), v) for g, v in [*pairs, *absent]])
        for accumulator in accumulators.values():
            accumulator.assign(tf.zeros_like(accumulator))
        carried.assign(tf.zeros_like(total))

    def carry() -> None:
        for gradient, variable in pairs:
            accumulator = accumulators[id(variable)]
            if overwritten_by_gradient(variable):
                accumulator.assign(mean_of(gradient, variable))
            else:
                assign_add(accumulator, times(gradient, weight, accumulator.dtype))
        carried.assign(total)

    branch(update_is_due(optimizer), finish, carry)


class CallsOnHost:
    """Counts the calls since the last update on the host too, which then need not ask a GPU whether an update is due.

    It counts while a loop runs whose steps call the optimizer once each (`once`). The device's count is read when the loop
    begins. A call that a loss scale skips counts as well: its update stays due at the k-th call. A call that anything else
    skips does not; see `run_stages`. For an optimizer with user code, which may or may not call it, nothing is
    counted.
    """

    def __init__(self, optimizer: Any, once: bool) -> None:
        each_one = [] if optimizer is None or not once else [optimizer, *inner_optimizers(optimizer)]
        known = not any(map(has_user_class, each_one))
        self._optimizers = [each for each in each_one if known and _steps(each)]
        self._graph: Any = None
        with tf.device(_HOST):
            self._counts = [plain_variable(tf.constant(0)) for _ in self._optimizers]

    def begin(self) -> None:
        """Read the counts of the device. Context: cross-replica; the graph in which the loop stands."""
        self._graph = tf.compat.v1.get_default_graph()
        for optimizer, count in zip(self._optimizers, self._counts):
            with tf.device(_HOST):
                calls = tf.convert_to_tensor(copies_of(call_count(optimizer))[0]) % _steps(optimizer)
                count.assign(tf.cast(calls, tf.int32))

    def next(self) -> dict[int, tf.Tensor]:
        """Return `StepContext.calls` of the next step of the loop; empty outside the loop. Context: cross-replica."""
        if not self._optimizers or not is_inside(tf.compat.v1.get_default_graph(), self._graph):
            return {}
        calls: dict[int, tf.Tensor] = {}
        for optimizer, count in zip(self._optimizers, self._counts):
            with tf.device(_HOST):
                calls[id(optimizer)] = before = count.read_value()
                count.assign((before + 1) % _steps(optimizer))
        return calls


def update_is_due(optimizer: Any) -> tf.Tensor:
    """Return whether this call is the k-th since the last update; bool scalar, on the host if known. Context: replica."""
    step = current_step()
    calls = None if step is None else step.calls.get(id(optimizer))
    if calls is None:
        return (local_copy(call_count(optimizer)) + 1) % _steps(optimizer) == 0
    with tf.device(_HOST):
        return tf.equal(calls + 1, _steps(optimizer))


def _steps(optimizer: Any) -> Any:
    return getattr(optimizer, "gradient_accumulation_steps", None)
