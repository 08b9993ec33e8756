"""What one call of an optimizer says beyond (gradient, variable) pairs, and what its stages may ask.

Between the call and the stages stand methods whose signatures are Keras' (`apply`, `update_step`, `_clip_gradients`),
and which subclasses override; so the options are kept on the calling thread, next to the arguments, and end with the call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from ..distribute.step_context import current_step


@dataclasses.dataclass(frozen=True)
class CallOptions:
    """One call of an optimizer."""

    skip_aggregation: bool = False  # the gradients are the same on every replica already
    # `aggregate_gradients` has divided the gradients by the loss scale already. Only with `skip_aggregation`.
    unscaled: bool = False
    # Scalar; what the loss of this micro-batch was divided by, over all replicas. None: the samples of the step, or 1 where
    # there is no step. Only ratios between the micro-batches of one update matter.
    weight_total: Any = None

    def divisor(self) -> Any:
        """The divisor of this micro-batch's loss, or what is proportional to it."""
        if self.weight_total is not None:
            return self.weight_total
        step = current_step()
        if step is None:
            return 1
        return step.global_rows if step.weight_total is None else step.weight_total


class _Local(threading.local):
    options: CallOptions = CallOptions()
    counts: dict[int, Any] | None = None


_local = _Local()


def current_options() -> CallOptions:
    """The options of the call that this thread is in."""
    return _local.options


@contextlib.contextmanager
def call_options(options: CallOptions) -> Iterator[None]:
    """Calls of optimizers inside the block have these options."""
    outer, _local.options = _local.options, options
    try:
        yield
    finally:
        _local.options = outer


@contextlib.contextmanager
def frozen_iterations(optimizer: Any, count: Any) -> Iterator[None]:
    """`optimizer.iterations` is the tensor `count` inside the block: read once, not once for each variable."""
    outer = _local.counts
    _local.counts = {**(outer or {}), id(optimizer): count, 0: count}
    try:
        yield
    finally:
        _local.counts = outer


def frozen_count(optimizer: Any) -> Any:
    """The count that `frozen_iterations` holds for the optimizer, or None."""
    return _local.counts.get(id(optimizer)) if _local.counts else None


def updates_so_far() -> Any:
    """How many updates the optimizer at work has applied before this one: int64 scalar tensor.

    For gradient transformers that change with time (a noise that fades, say).

    Raises:
        RuntimeError: called outside of a transformer.

    Context: inside a gradient transformer or a clipping method.
    """
    if not _local.counts:
        raise RuntimeError(
            "`updates_so_far` was called outside of a gradient transformer: call it inside of one."
        )
    return _local.counts[0]


def gradients_are_taken(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> bool:
    """Whether the current step collects the gradients, scaled as they are: then nothing is to be applied now.

    So do the parts of a synchronous step on parameter servers: the sum of all parts is applied, once. Context: replica.
    """
    step = current_step()
    if step is None or step.take_gradients is None:
        return False
    step.take_gradients(optimizer, zip(gradients, variables))
    return True
