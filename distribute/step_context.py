"""The state of one replica in the current step.

Every value in it is a tensor of the step's graph or a Python constant; none outlives the step.
"""

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from ..compat.patches import replace_functions
from ..compat.register import ACCUMULATING
from ..compat.thread_context import ThreadContext
from ..compat.wrong_use import WrongUse


@dataclasses.dataclass
class ReplicaSamples:
    """One replica's samples of the global batch. Counts are ints, or int32 scalar tensors."""

    # 0 to `num_replicas - 1` over all workers. Random layers mix it into their seeds, so that replicas draw different
    # numbers. Asynchronous workers, which read the same random state, also have distinct numbers, though each of their steps
    # has one replica.
    replica_id: Any
    num_replicas: int  # in sync
    # Samples of the global batch that this replica holds. Can be 0: the replica then computes on one borrowed sample, whose
    # effects are dropped (`alive` is false).
    samples: Any
    global_samples: Any
    # The position of this replica's first sample in the global batch. None: split evenly, in the order of the replicas.
    first_sample: Any = None
    # The first of its samples whose outputs it returns, and how many: where it computes those of other replicas, too.
    returned: Any = None

    @property
    def alive(self) -> Any:
        """Whether this replica has samples: a bool when that is known while tracing, else a bool tensor."""
        return self.samples > 0

    @property
    def samples_before(self) -> Any:
        """The number of samples of the global batch before this replica's: an int or an int tensor."""
        if self.first_sample is not None:
            return self.first_sample
        return (self.replica_id * self.global_samples) // self.num_replicas

    @property
    def holds_first_sample(self) -> Any:
        """Whether the first sample of the global batch is this replica's: a bool or a bool tensor."""
        first, alive = self.samples_before == 0, self.alive
        if isinstance(first, bool) and isinstance(alive, bool):
            return first and alive
        return tf.logical_and(first, alive)

    def share(self, dtype: Any = tf.float32) -> tf.Tensor:
        """`samples / global_samples`, the weight of this replica's mean in the global mean; a scalar."""
        samples, total = tf.cast(self.samples, tf.float64), tf.cast(self.global_samples, tf.float64)
        return tf.cast(tf.math.divide_no_nan(samples, total), dtype)


NOT_AGGREGATED = "not aggregated"
"""A note of a step that takes gradients: `fn(optimizer)`, an error for code that aggregates them, or None."""


@dataclasses.dataclass
class WeightTotals:
    """The divisors of a step's losses that do not divide by the number of samples (masks, `mean_with_sample_weight`).

    `noted` are the recorded ones, scalars summed over the replicas, in the order of the losses. `known` are those of the
    whole batch, where the step computes a part of it; None: `noted` are those of the batch.
    """

    noted: list[Any] = dataclasses.field(default_factory=list)
    known: Sequence[Any] | None = None

    def divisor(self, total: Any) -> Any:
        """Record the total sample weight of the next loss; return that of the whole batch."""
        if self.known is not None:
            total = self.known[len(self.noted)]
        self.noted.append(total)
        return total


@dataclasses.dataclass
class StepContext(ReplicaSamples):
    """A replica's samples, and the state that code inside Keras leaves for the surrounding step."""

    # Computes loss, gradients and outputs in `Model.train_step`; None: Keras' own function.
    compute: Any = None
    in_xla: bool = False  # whether XLA compiles this part of the step, where collectives are not supported
    # Of its losses, where they are needed (to accumulate gradients, to combine the parts of a batch).
    totals: WeightTotals | None = None
    writes: Any = None  # the scope that collects the writes of Keras variables in this step
    # Bool scalar tensors, one for each optimizer that was to update: true if it did.
    finite_checks: list[Any] = dataclasses.field(default_factory=list)
    # Notes of other objects for the rest of this step.
    notes: dict[Any, Any] = dataclasses.field(default_factory=dict)
    builds_under: Any = None  # None or the strategy under which layers that have no variables yet are built
    # None or `fn(optimizer, pairs)`, called with the gradients instead of applying them.
    take_gradients: Any = None
    # An optimizer's calls since its last update before this step, by its id; int32 scalar on the host. For a missing
    # optimizer only the device knows the number.
    calls: dict[int, Any] = dataclasses.field(default_factory=dict)
    of_custom_loop: bool = False
    # Shapes that may differ in another step, of what collectives carry, noted while the step is traced. TensorFlow keeps
    # the shape of a collective for a whole call, so such steps cannot run in one loop.
    open_collectives: list[tf.TensorShape] = dataclasses.field(default_factory=list)
    # How it computes attention, as far as the first line of `fit` says it: `attention.choice.Choice`.
    attention: set[Any] = dataclasses.field(default_factory=set)

    @property
    def weight_total(self) -> Any:
        """The divisor of the step's loss where exactly one loss has a special one; else None: the samples."""
        noted = self.totals.noted if self.totals is not None else ()
        return noted[0] if len(noted) == 1 else None

    @property
    def applied(self) -> Any:
        """Whether every optimizer applied its update: bool scalar tensor; None where no optimizer can skip updates."""
        return tf.reduce_all(tf.stack(self.finite_checks)) if self.finite_checks else None


class _Here(ThreadContext):
    step: StepContext | None = None  # that this thread computes
    draws_of: StepContext | None = None  # whose replica draws random numbers, around a model in a custom loop
    pipeline: Any = None  # in whose scope models are created
    sees_sharded: Any = None  # a function of a `ShardedValue`: the variable that is seen instead
    updates_sharded: bool = False  # in `strategy.extended.update` of a sharded variable
    moves_weights: bool = False  # variables that are created here are the weights of a model
    reads_under_xla: bool = False  # readers that are traced here read samples by number
    # Gradients are shards, whose norms are summed over the replicas: how many replicas have the same shard of each; 0: no.
    copies_of_shards: Any = 0


here = _Here()


def current_step() -> StepContext | None:
    """Return the step that this thread computes, or None outside the trainer's steps (such as in a custom loop)."""
    return here.step


def note_collective(tensors: Iterable[Any]) -> None:
    """Note in the current step which of the `tensors` that a collective carries have an open shape."""
    if here.step is not None:
        here.step.open_collectives += [t.shape for t in tensors if not t.shape.is_fully_defined()]


@contextlib.contextmanager
def draws_of(replica: StepContext) -> Iterator[None]:
    """Let layers draw the random numbers of this replica inside; `current_step` is not set."""
    with here.set_to(draws_of=replica), replace_functions():
        yield


def this_step() -> StepContext:
    """Return the step that this thread computes, for code that is only ever called inside one."""
    if here.step is None:
        raise WrongUse("This function works only in a step of `fit`, `evaluate` or `predict`.")
    return here.step


@contextlib.contextmanager
def step_scope(context: StepContext | None) -> Iterator[StepContext | None]:
    """Make `context` the current step of this thread, and replace functions of Keras; `None` hides an outer one."""
    with here.set_to(step=context), contextlib.ExitStack() as stack:
        if context is not None:
            stack.enter_context(replace_functions(*[ACCUMULATING] * (context.totals is not None)))
        yield context
