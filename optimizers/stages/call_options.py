"""What one call of an optimizer says beyond (gradient, variable) pairs, and what its stages may ask."""

import contextlib
import dataclasses
import types
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from ...compat.thread_context import ThreadContext
from ...compat.wrong_use import WrongUse
from ...distribute.step_context import current_step


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """One call of an optimizer, kept on the thread, as methods with Keras' signatures stand before the stages."""

    skip_aggregation: bool = False  # the gradients are the same on every replica already
    # `aggregate_gradients` has divided the gradients by the loss scale already. Only with `skip_aggregation`.
    unscaled: bool = False
    # Scalar; what the loss of this micro-batch was divided by, over all replicas. None: the samples of the step, or 1 where
    # there is no step. Only ratios between the micro-batches of one update matter.
    weight_total: Any = None
    # The ids of variables whose gradients are this replica's parts of the sums already.
    summed: Collection[int] = ()
    # `update(optimizer, pairs)`: the rest of a call that began at an optimizer which holds this one: its gradients are
    # aggregated, unscaled and checked. None: the call begins here.
    update: Any = None

    def divisor(self) -> Any:
        """Return the divisor of this micro-batch's loss, or a number proportional to it."""
        if self.weight_total is not None:
            return self.weight_total
        step = current_step()
        if step is None:
            return 1
        return step.global_samples if step.weight_total is None else step.weight_total


class _Call(ThreadContext):
    options = CallOptions()
    # `iterations` by the id of an optimizer; 0: of the newest.
    counts: Mapping[int, tf.Tensor] = types.MappingProxyType({})


_call = _Call()


def current_options() -> CallOptions:
    """Return the options of the call that this thread is in."""
    return _call.options


def call_options(options: CallOptions) -> contextlib.AbstractContextManager[None]:
    """Let calls of optimizers inside the block have these options."""
    return _call.set_to(options=options)


def freeze_iterations(optimizer: Any) -> contextlib.AbstractContextManager[None]:
    """Make the count of Keras' `iterations` a tensor inside the block, read once and not for each variable."""
    count = tf.identity(tf.convert_to_tensor(keras.optimizers.Optimizer.iterations.fget(optimizer)))  # type: ignore[attr-defined]
    return _call.set_to(counts={**_call.counts, id(optimizer): count, 0: count})


def read_count(optimizer: Any) -> Any:
    """Return the count that `freeze_iterations` holds for the optimizer, or None."""
    return _call.counts.get(id(optimizer))


def notes_of_trace() -> dict[Any, Any] | None:
    """Return what is noted for the current step, or for the outermost function that is being traced; None eagerly."""
    step = current_step()
    if step is not None or tf.executing_eagerly():
        return None if step is None else step.notes
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    notes: list[Any] = graph.get_collection_ref("unisono")
    notes += [] if notes else [{}]
    return notes[0]


def updates_so_far() -> Any:
    """Return the number of updates that the optimizer has applied before this one: int64 scalar tensor.

    Raises:
        RuntimeError: called outside a gradient transformer or a clipping method.

    Examples:
        >>> def fade(pairs):  # a gradient transformer that changes with time
        ...     scale = 1 / (1 + tf.cast(unisono.optimizers.updates_so_far(), tf.float32))
        ...     return [(scale * gradient, variable) for gradient, variable in pairs]
        >>> optimizer = unisono.optimizers.SGD(0.1, gradient_transformers=[fade])
    """
    if not _call.counts:
        raise WrongUse("`updates_so_far` was called outside a gradient transformer: call it inside one.")
    return _call.counts[0]


def gradients_are_taken(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Return whether the step takes the gradients to apply them later, as on parameter servers. Context: replica."""
    step = current_step()
    if step is None or step.take_gradients is None:
        return False
    step.take_gradients(optimizer, zip(gradients, variables))
    return True
