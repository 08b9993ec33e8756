"""What one replica knows about the step that it is computing.

The trainer enters a `StepContext` around the user's code, because between the two is code that it does not call with
arguments of its own: a `train_step`, a loss, a metric, an optimizer. Everything in it is a tensor of the step's graph or
a Python constant; nothing in it outlives the step.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..compat.replaced import replaced_functions


@dataclasses.dataclass
class ReplicaRows:
    """One replica's samples of the global batch.

    Attributes:
        replica_id: int or int32 scalar tensor; 0 to `num_replicas - 1` over all workers. Random layers mix it into their
            seeds, so that replicas draw different numbers. Asynchronous workers, which read the same random state, each
            have their own number, too, though each of their steps has one replica.
        num_replicas: int; replicas in sync.
        rows: int or int32 scalar tensor; samples of the global batch that this replica holds. Can be 0: the replica then
            computes on one borrowed sample, whose effects are dropped (`alive` is false).
        global_rows: int or int32 scalar tensor; samples of the global batch.
        first_row: int or int32 scalar tensor or None; where this replica's samples begin in the global batch. None: the
            samples are shared out evenly, in the order of the replicas.
    """

    replica_id: Any
    num_replicas: int
    rows: Any
    global_rows: Any
    first_row: Any = None

    @property
    def alive(self) -> Any:
        """Whether this replica has samples: a bool when that is known while tracing, else a bool tensor."""
        return self.rows > 0

    @property
    def draws_as_one_device(self) -> bool:
        """Whether random layers draw the same numbers as a single device: on the first replica, or with all samples."""
        return isinstance(self.replica_id, int) and self.replica_id == 0

    @property
    def certainly_alive(self) -> bool:
        """Whether it is known while tracing that this replica has samples."""
        return isinstance(self.rows, int) and self.rows > 0

    @property
    def rows_before(self) -> Any:
        """The samples of the global batch that are before those of this replica: an int or an int tensor."""
        if self.first_row is not None:
            return self.first_row
        return (self.replica_id * self.global_rows) // self.num_replicas

    @property
    def holds_first_row(self) -> Any:
        """Whether the first sample of the global batch is this replica's: a bool or a bool tensor."""
        before = self.rows_before
        first = before == 0 if isinstance(before, int) else tf.equal(before, 0)
        return tf.logical_and(first, self.alive)

    def share(self, dtype: Any = tf.float32) -> tf.Tensor:
        """`rows / global_rows`, the weight of a mean over this replica's samples in the global mean; a scalar."""
        rows, total = tf.cast(self.rows, tf.float64), tf.cast(self.global_rows, tf.float64)
        return tf.cast(tf.math.divide_no_nan(rows, total), dtype)


ON_FIRST_REPLICA = "on the first replica"
"""In the notes of a step that the first replica computes on the whole batch: what it writes counts."""

NOT_AGGREGATED = "not aggregated"
"""In the notes of a step whose gradients are taken: `fn(optimizer)`, an error for code that aggregates them, or None."""


@dataclasses.dataclass
class WeightTotals:
    """The divisors of those losses of a step that are not divided by samples (masks, `mean_with_sample_weight`), in order.

    Attributes:
        noted: scalar tensors; those so far, each summed over the replicas.
        known: those of the whole batch, where the step computes a part of it; None: what is noted is that of the batch.
    """

    noted: list[Any] = dataclasses.field(default_factory=list)
    known: Sequence[Any] | None = None

    def divisor(self, total: Any) -> Any:
        """Notes the total sample weight of the next loss; returns that of the whole batch."""
        if self.known is not None:
            total = self.known[len(self.noted)]
        self.noted.append(total)
        return total


@dataclasses.dataclass
class StepContext(ReplicaRows):
    """A replica's samples, and what code inside of Keras leaves for the step around it.

    Attributes:
        compute: the function that computes loss, gradients and outputs in `Model.train_step`; None: as it is written.
        in_xla: bool; whether this part of the step is compiled by XLA, where no collective can be.
        totals: the total sample weights of its losses, where they are asked for (to accumulate gradients, to combine the
            parts of a batch); else None.
        writes: the scope that collects the writes of Keras variables in this step.
        verdicts: the finite checks, bool scalar tensors; one from each optimizer that was asked to apply: true when it did.
        notes: what objects keep for the rest of this step, under keys of their own.
        shapes_vary: bool; noted while the step is traced: a collective in it may have another shape in another step.
            TensorFlow keeps the shape of a collective for a whole call, so such steps cannot be run in one loop.
        builds_under: None or the strategy under which layers that have no variables yet are built.
        take_gradients: None or `fn(optimizer, pairs)`; called with the gradients instead of applying them.
        calls: for an optimizer, by its id: its calls since its last update before this step; int32 scalar on the host.
            Of one that is not there only the device knows.
        of_custom_loop: bool; whether it is a step of a custom loop.
    """

    compute: Any = None
    in_xla: bool = False
    totals: WeightTotals | None = None
    writes: Any = None
    verdicts: list[Any] = dataclasses.field(default_factory=list)
    notes: dict[Any, Any] = dataclasses.field(default_factory=dict)
    shapes_vary: bool = False
    builds_under: Any = None
    take_gradients: Any = None
    calls: dict[int, Any] = dataclasses.field(default_factory=dict)
    of_custom_loop: bool = False

    def count(self, what: str) -> int:
        """How many times this was asked for `what` in this step before."""
        number = self.notes.get(what, 0)
        self.notes[what] = number + 1
        return number

    @property
    def weight_total(self) -> Any:
        """The divisor of the step's loss where exactly one loss has one of its own; else None: the samples."""
        noted = self.totals.noted if self.totals is not None else ()
        return noted[0] if len(noted) == 1 else None

    @property
    def applied(self) -> Any:
        """Whether every optimizer applied its update: bool scalar tensor; None where none could skip."""
        return tf.reduce_all(tf.stack(self.verdicts)) if self.verdicts else None


class _Local(threading.local):
    step: StepContext | None = None
    drawing: StepContext | None = None


_local = _Local()


def current_step() -> StepContext | None:
    """The step that this thread computes, or None outside of the trainer's steps (in a custom loop, say)."""
    return _local.step


def drawing_step() -> StepContext | None:
    """The step whose replica draws random numbers: `current_step()`, or one around a model in a custom loop."""
    return _local.step or _local.drawing


@contextlib.contextmanager
def draws_of(replica: StepContext) -> Iterator[None]:
    """Inside, layers draw the random numbers of this replica, and nothing else is a step."""
    outer, _local.drawing = _local.drawing, replica
    try:
        with replaced_functions():
            yield
    finally:
        _local.drawing = outer


def this_step() -> StepContext:
    """The step that this thread computes, for code that is only ever called inside one."""
    if _local.step is None:
        raise RuntimeError(
            "This function is a part of a step of `fit`, `evaluate` or `predict`: call it inside of one."
        )
    return _local.step


@contextlib.contextmanager
def step_scope(context: StepContext | None) -> Iterator[StepContext | None]:
    """Makes `context` the current step of this thread, and replaces functions of Keras; `None` hides an outer one."""
    outer, _local.step = _local.step, context
    try:
        with replaced_functions() if context is not None else contextlib.nullcontext():
            yield context
    finally:
        _local.step = outer
